// How the entry points of shim and soft driver check what they are given.
#pragma once

/// What an entry point checks of its arguments: where the condition holds, it returns the error.
#define GANTRY_REFUSE_IF(condition, error) \
    do {                                   \
        if (condition) {                   \
            return (error);                \
        }                                  \
    } while (0)
