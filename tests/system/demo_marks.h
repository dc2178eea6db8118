// What the demonstration's programs share beside the GPU work: numbered datagrams that let a
// listener see when GPU calls stall, and the word to stop. C, and CUDA C++.
#pragma once

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { kDemoMarkOfGpu = 1, kDemoStopPort = 7778 };

struct DemoMark {
    uint32_t kind;
    uint32_t reserved;
    uint64_t number;
};

/// A socket that sends to "ADDRESS:PORT"; -1: that is no address, or there is no socket.
static inline int demo_open_marks(const char* where) {
    char address[64];
    int port = 0;
    struct sockaddr_in to;
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    if (sscanf(where, "%63[^:]:%d", address, &port) != 2 ||
        inet_pton(AF_INET, address, &to.sin_addr) != 1) {
        return -1;
    }
    to.sin_port = htons((uint16_t)port);
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    return fd >= 0 && connect(fd, (struct sockaddr*)&to, sizeof to) == 0 ? fd : -1;
}

/// After the GPU call of that number.
static inline void demo_send_mark(int fd, uint64_t number) {
    struct DemoMark mark = {kDemoMarkOfGpu, 0, number};
    (void)!send(fd, &mark, sizeof mark, 0);
}

/// Where the word to stop arrives; -1: the port is taken.
static inline int demo_open_stop(void) {
    struct sockaddr_in here;
    memset(&here, 0, sizeof here);
    here.sin_family = AF_INET;
    here.sin_port = htons(kDemoStopPort);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    return fd >= 0 && bind(fd, (struct sockaddr*)&here, sizeof here) == 0 ? fd : -1;
}

static inline int demo_is_told_to_stop(int fd) {
    char word = 0;
    return fd >= 0 && recv(fd, &word, 1, 0) > 0;
}
