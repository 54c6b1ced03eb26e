"""What the messages of a publisher are that nobody has seen before: `reprise publishers check`.

    payload      one message: its frames, its encoding, its events, each still encoded
    survey       what all messages and events have: numbers, ranks, fields and their values
    trial        what the decoder of a kind makes of each event alone
    block_names  what the hashes of its blocks are
    folded       what a service would have made of all of it, and what the doctor says of that
    check        all of these, the registration to use, and what only the engine's author knows
    document     the answer
    words        the answer for people

The decoders are the bridge's and the fold is the worker's: nothing here reads an event by itself.
"""
