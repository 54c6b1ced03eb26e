"""From the text of a request to the token ids that an engine computes for it.

    prompt.py            a chat, completion or embedding request as OpenAI has it, to its prompts
    responses.py         a request to the Responses API, to a chat
    interface.py         what a prompt becomes, and what this room needs of others
    tokenizer.py         prompts to token ids, by whichever way is proven; comparisons with engines
    local_model.py       a model whose files are named, and whether engines agree
    model_tokenizer.py   its tokenizer and its template, behind kept pieces
      model_files.py, conversation.py, template.py, sandbox.py, pieces.py
    engine_tokenizer.py  what an engine's /tokenize is asked, and says
    engine_questions.py  how many prompts got no tokens in time there

The room asks nothing of the index. Its network is handed in. `tokenizers` and `jinja2`, the extra
`text`, are imported where a model's files are read first.
"""
