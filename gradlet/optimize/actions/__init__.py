"""The words of the schedule language, a module a word; `language` has the list and applies them."""
