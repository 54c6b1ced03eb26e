"""Access to Apache Kafka: clients, topics, reading. Only this room imports aiokafka."""
