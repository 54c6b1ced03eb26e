"""What a chat template's rendering ends with."""


class TemplateError(Exception):
    """The template refuses the messages, or fails. Its text may have what the messages have."""


class TemplateSlowError(TemplateError):
    """The template takes more steps or time than it may."""
