"""`reprise discover`: engines of a Kubernetes namespace are registered while their pods are there.

Of every pod and endpoint the API server tells (`cluster`), it is read what is to be registered
(`engines`), the pods that there are make what is wanted (`membership`), and what is wanted is
compared with what the service says is registered (`plan`): again after every change, and once a
while. Nothing is kept, so it can be killed at any moment.
"""
