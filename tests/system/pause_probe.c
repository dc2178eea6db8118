/* Runs in the test VM: sends a numbered datagram to the gateway every 2 ms, so that a sink on the
   hosts can see how long the VM stood still; the guest's own clocks do not see it. The first word
   is the kind of mark, 0 here; programs send their own kinds (see demo_walk.cu).
   Usage: pause_probe ADDRESS [PORT]. Linked statically. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { kDefaultPort = 7777, kIntervalNs = 2000000 };

struct mark {
    uint32_t kind;
    uint32_t reserved;
    uint64_t number;
};

int main(int argc, char** argv) {
    struct sockaddr_in to;
    struct mark mark = {0, 0, 0};
    const struct timespec interval = {0, kIntervalNs};
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)(argc > 2 ? atoi(argv[2]) : kDefaultPort));
    if (argc < 2 || fd < 0 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
        fprintf(stderr, "usage: pause_probe ADDRESS [PORT]\n");
        return 2;
    }
    for (;;) {
        /* A lost datagram is a gap of one interval: not worth an error. */
        (void)!sendto(fd, &mark, sizeof mark, 0, (struct sockaddr*)&to, sizeof to);
        ++mark.number;
        nanosleep(&interval, NULL);
    }
}
