.DEFAULT_GOAL := help
SHELL := /bin/bash
