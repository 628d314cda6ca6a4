"""Random programs, compiled and compared with eager; failing ones are reduced and written as scripts."""
