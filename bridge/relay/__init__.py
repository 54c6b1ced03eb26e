"""`reprise relay`: an engine's events, encrypted on their way to the bridges.

Engines bind their sockets for whoever reaches them, and encrypt nothing. A relay runs on the
engine's host, where the engine may bind loopback alone. It hands on what the engine publishes and
what it replays, frame by frame as it came, over links of CURVE and to bridges whose public keys it
lists. So numbers, gaps and replays mean to a bridge what they mean without it; and a link to the
relay is up only while the relay's own link to the engine is, so that a bridge sees at once that an
engine has gone.
"""
