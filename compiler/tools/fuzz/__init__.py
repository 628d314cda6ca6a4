"""Random programs, compiled and compared with eager; what fails is made smaller and written as a script."""
