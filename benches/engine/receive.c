// Lower bound of a server's cost for a body on the core of its model: receives bodies of `wrk` into memory that it has
// used before, spends the time of a run on walking through memory as large as a model's, and answers 4 bytes. Prints
// the thread's CPU time for receive and answer, without the run:
//
//   cc -O2 -o /tmp/receive benches/engine/receive.c
//   head -c 602112 /dev/zero >/tmp/body
//   echo 'local f = io.open("/tmp/body", "rb") wrk.method = "POST" wrk.body = f:read("*a") f:close()' >/tmp/body.lua
//   taskset -c 0 /tmp/receive 602112 1950 3 3000 &    # bytes of a body, µs of a run, MiB that it walks through, requests
//   taskset -c 1 wrk -t1 -c1 -d15s -s /tmp/body.lua http://127.0.0.1:9100/

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double micros(clockid_t clock) {
  struct timespec at;
  clock_gettime(clock, &at);
  return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}

// A connection of wrk, which opens one before the load that it closes again without a request.
static int connection(int listener) {
  int one = 1, socket = accept(listener, NULL, NULL);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return socket;
}

int main(int count, char **words) {
  if (count != 5) return fprintf(stderr, "receive BODY-BYTES RUN-MICROSECONDS WALK-MIB REQUESTS\n"), 2;
  size_t body = strtoul(words[1], NULL, 10), walk = strtoul(words[3], NULL, 10) << 20;
  double run = atof(words[2]), used = 0;
  long requests = atol(words[4]), done = 0;
  const char *answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n1234";
  int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9100), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16)) return perror("port 9100"), 1;
  char *space = malloc(body + 65536);
  volatile char *weights = malloc(walk + 1);
  memset(space, 1, body + 65536);
  memset((void *)weights, 1, walk + 1);
  int socket = connection(listener);
  while (done < requests) {
    size_t here = 0, wanted = 0;
    double before = micros(CLOCK_THREAD_CPUTIME_ID);
    while (!wanted || here < wanted) {
      ssize_t more = recv(socket, space + here, wanted ? wanted - here : 65536, MSG_DONTWAIT);
      struct pollfd waits = {socket, POLLIN, 0};
      if (more < 0) poll(&waits, 1, -1);
      if (more == 0 && done > 0) goto end;
      if (more == 0) close(socket), socket = connection(listener);
      if (more <= 0) continue;
      here += more;
      char *head = wanted ? NULL : memmem(space, here, "\r\n\r\n", 4);
      if (head) wanted = head + 4 - space + body;
    }
    used += micros(CLOCK_THREAD_CPUTIME_ID) - before;
    for (double end = micros(CLOCK_MONOTONIC) + run; micros(CLOCK_MONOTONIC) < end;)
      for (size_t at = 0; at < walk; at += 64) (void)weights[at];
    before = micros(CLOCK_THREAD_CPUTIME_ID);
    send(socket, answer, strlen(answer), MSG_NOSIGNAL);
    used += micros(CLOCK_THREAD_CPUTIME_ID) - before;
    done++;
  }
end:
  printf("%.0f µs of CPU a request, besides the run, over %ld requests\n", used / done, done);
}
