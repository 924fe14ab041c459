"""kvpager inside other libraries' models. Nothing here is imported unless asked for."""
