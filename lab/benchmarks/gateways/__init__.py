"""The gateway beside other routers: the same chats at the same times, through one after another."""
