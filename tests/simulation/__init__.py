"""The simulation lane: real parts of the system on a simulated clock, broker, disk and network.

    loop      an event loop whose clock jumps, and processes on it that can be killed and paused
    broker    Apache Kafka in memory, under the names of aiokafka's clients
    engines   publishers with a cache, a link that cuts and drops, and a replay buffer
    world     the parts put together, a random history of faults, and what must be true at its end

One seed decides everything. A failure prints it: `pytest tests/simulation --seed N`.
"""
