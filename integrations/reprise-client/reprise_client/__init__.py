"""What a router in Python needs of Reprise: decisions, reports of outcomes, and token ids.

client.py        `Client` asks `POST /route` and tells `POST /feedback`, in threads of its own
tokens.py        `Tokenizer` has an engine, or a local tokenizer, make token ids of a request
local_tokens.py  a tokenizer of this process
"""

from reprise_client.client import Client, Decision, Http, Refusal, Report, Unanswered
from reprise_client.tokens import Tokenizer, question

__all__ = [
    "Client",
    "Decision",
    "Http",
    "Refusal",
    "Report",
    "Tokenizer",
    "Unanswered",
    "question",
]
