"""How models write calls of tools: each format's parser and grammar, and which one a model has."""
