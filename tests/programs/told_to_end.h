// How a program of a test learns that it may end: a line comes on its standard input, or the input
// ends. Until then it goes on: a script that stops, kills or moves it is never too late, however
// slow the machine is. tests/rig/programs.py is the other side.
#pragma once

#include <poll.h>

static inline bool told_to_end(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}
