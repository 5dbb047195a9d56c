// Starts a program once and runs it many times. libtorch registers its thousands of operators whenever a program that
// is linked to it starts: 0.3 s, which the thousands of commands of the tests need not pay each. Preloaded into the
// program, this lets all of that happen, and forks where main would begin: each child runs the real main, with words, a
// folder and files of its own. tests/warm.py is the other side.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
Main program = nullptr;

constexpr size_t files = 4;  // stdin, stdout, stderr, and where the status goes
constexpr size_t longest = 1 << 17;

struct Request {
  std::vector<std::string> words;  // the folder, then those of the command line
  std::array<int, files> descriptors{};
};

// One packet: texts that each end with a zero, and the descriptors. False: nobody asks any more.
bool receive(int socket, Request& request) {
  static std::array<char, longest> text;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * files)> control{};
  iovec piece = {text.data(), text.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (length <= 0 || header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(int) * files)) {
    return false;
  }
  std::copy_n(CMSG_DATA(header), sizeof(int) * files, reinterpret_cast<unsigned char*>(request.descriptors.data()));
  request.words.clear();
  for (ssize_t begin = 0; begin < length; begin += static_cast<ssize_t>(request.words.back().size()) + 1) {
    request.words.emplace_back(text.data() + begin);
  }
  return true;
}

int run_program(const Request& request, char* name, char** environment) {
  for (int file = 0; file < 3; ++file) {
    dup2(request.descriptors[static_cast<size_t>(file)], file);
  }
  if (chdir(request.words.front().c_str()) != 0) {
    _exit(127);
  }
  std::vector<char*> words = {name};
  for (size_t i = 1; i < request.words.size(); ++i) {
    words.push_back(const_cast<char*>(request.words[i].c_str()));
  }
  words.push_back(nullptr);
  return program(static_cast<int>(words.size()) - 1, words.data(), environment);
}

// Each request has a keeper, which waits for the program and says how it ended; the server waits for keepers, so that
// what all of them took is known to whoever waits for the server.
int serve(int, char** words, char** environment) {
  const int socket = std::atoi(std::getenv("PARE_WARM"));
  unsetenv("PARE_WARM");
  unsetenv("LD_PRELOAD");
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  for (Request request; receive(socket, request);) {
    if (const pid_t keeper = fork(); keeper == 0) {
      const pid_t child = fork();
      if (child == 0) {
        close(socket);
        return run_program(request, words[0], environment);
      }
      int32_t said[2] = {child, 0};
      const int answer = request.descriptors[3];
      bool told = write(answer, &said[0], sizeof said[0]) == sizeof said[0];
      told = waitpid(child, &said[1], 0) == child && told;
      _exit(told && write(answer, &said[1], sizeof said[1]) == sizeof said[1] ? 0 : 1);
    }
    for (const int file : request.descriptors) {
      close(file);
    }
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  _exit(0);
}

}  // namespace

// What the C library calls a program's main through, once all that is linked has begun.
extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main main, int argc, char** argv,
                                                                        void (*init)(), void (*fini)(),
                                                                        void (*linker_fini)(), void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  program = main;
  return start(std::getenv("PARE_WARM") != nullptr ? serve : main, argc, argv, init, fini, linker_fini, stack_end);
}
