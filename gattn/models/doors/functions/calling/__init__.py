"""The call that a function of torch was given, and functions of torch that call others."""
