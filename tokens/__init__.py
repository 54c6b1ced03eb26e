"""From the text of a request to the token ids that an engine computes for it.

    prompt.py      a chat or completion request as OpenAI has it, to a prompt
    interface.py   what a prompt becomes: token ids, or the name of the reason why there are none
    tokenizer.py   prompts to token ids: by the model's own files, or by an engine's `/tokenize`

The room asks nothing of the index. Its network is handed in.
"""
