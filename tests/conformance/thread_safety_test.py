#!/usr/bin/env python3
"""clang's -Wthread-safety must find each misuse of a mutex that we know, and every mutex of the
product must tell it what it protects.

1. CASES is compiled as one file: clang must say what stands behind "error:" in a line, and nothing
   else.
2. MUTATIONS take a lock out of a file of the product: clang must refuse each.
3. No file of the product uses the standard library's or libc's mutexes, which the analysis does not
   see; and each mutex is named by an annotation of the file that declares it.

usage: thread_safety_test.py CLANG FLAGS ROOT BUILD (FLAGS: the build's own, separated by ';')
"""

import pathlib
import re
import subprocess
import sys
import tempfile

CASES = r'''
#include "guest-shim/session/base/futex_mutex.h"
#include "proto/base/mutex.h"
#include "proto/base/pthread_mutex.h"
#include "proto/base/shared_mutex.h"

using namespace gantry;

class Account {
public:
    int right() {
        MutexLock lock(mutex_);
        changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) { return sum_ != 0; });
        lock.unlock();
        lock.lock();
        return add_locked(1);
    }
    int reads() { return sum_; }  // error: reading variable 'sum_' requires holding mutex 'mutex_'
    void writes() {
        sum_ = 1;  // error: writing variable 'sum_' requires holding mutex 'mutex_' exclusively
    }
    void goes_on_unlocked() {
        MutexLock lock(mutex_);
        lock.unlock();
        sum_ = 1;  // error: writing variable 'sum_' requires holding mutex 'mutex_' exclusively
    }
    int calls() {
        return add_locked(1);  // error: calling function 'add_locked' requires holding mutex
    }
    int calls_itself() {
        const MutexLock lock(mutex_);
        return takes_it();  // error: cannot call function 'takes_it' while mutex 'mutex_' is held
    }
    int takes_it() GANTRY_EXCLUDES(mutex_) {
        const MutexLock lock(mutex_);
        return sum_;
    }
    void locks_twice() {
        const MutexLock lock(mutex_);
        const MutexLock again(mutex_);  // error: acquiring mutex 'mutex_' that is already held
    }
    void keeps() {
        mutex_.lock();
    }  // error: mutex 'mutex_' is still held at the end of function
    void unlocks_what_is_free() {
        MutexLock lock(mutex_);
        lock.unlock();
        lock.unlock();  // error: releasing mutex 'mutex_' that was not held
    }
    void wrong_mutex() {
        const MutexLock lock(other_);
        sum_ = 1;  // error: writing variable 'sum_' requires holding mutex 'mutex_' exclusively
    }
    void condition_without_mutex() {
        MutexLock lock(mutex_);
        changed_.wait(lock, [this] {
            return sum_ != 0;  // error: reading variable 'sum_' requires holding mutex 'mutex_'
        });
    }
    static void of_another(Account& a, Account& b) {
        const MutexLock lock(a.mutex_);
        b.sum_ = 1;  // error: writing variable 'sum_' requires holding mutex 'b.mutex_' exclusively
    }

private:
    int add_locked(int n) GANTRY_REQUIRES(mutex_) { return sum_ += n; }

    Mutex mutex_;
    Mutex other_;
    CondVar changed_;
    int sum_ GANTRY_GUARDED_BY(mutex_) = 0;
};

class Table {
public:
    int right() {
        const ReaderLock lock(mutex_);
        return sum_;
    }
    void right_writer() {
        const WriterLock lock(mutex_);
        sum_ = 1;
    }
    void reader_writes() {
        const ReaderLock lock(mutex_);
        sum_ = 1;  // error: writing variable 'sum_' requires holding mutex 'mutex_' exclusively
    }

private:
    SharedMutex mutex_;
    int sum_ GANTRY_GUARDED_BY(mutex_) = 0;
};

session::FutexMutex g_futex_mutex;
int g_of_futex GANTRY_GUARDED_BY(g_futex_mutex);
PthreadMutex g_pthread_mutex;
int g_of_pthread GANTRY_GUARDED_BY(g_pthread_mutex);

void right() {
    const session::Guard guard(g_futex_mutex);
    const PthreadLock lock(g_pthread_mutex);
    g_of_futex = g_of_pthread = 1;
}
void wrong() {
    g_of_futex = 1;    // error: writing variable 'g_of_futex' requires holding mutex
    g_of_pthread = 1;  // error: writing variable 'g_of_pthread' requires holding mutex
}
'''

# File of the product, the lock that is taken out (its first place), what clang must say.
MUTATIONS = (
    ("proto/wire/mirror/link.cc", "    const MutexLock lock(mutex_);\n    received_ = received;",
     "    received_ = received;", "writing variable 'received_'"),
    ("proto/base/thread_pool.cc", "        lock.lock();\n", "",
     "'at_work_' requires holding mutex"),
    ("guest-shim/session/crew.cc", "    Guard guard(g_mutex);\n    for (Job* job",
     "    for (Job* job", "'g_jobs' requires holding mutex"),
    ("proto/cuda/dark/storage.cc", "    const PthreadLock lock(g_write_mutex);\n", "",
     "calling function 'find_locked' requires holding mutex"),
)

PRODUCT = ("proto", "guest-shim", "host-daemon", "migration")
UNSEEN = re.compile(r"std::(recursive_|shared_|timed_|shared_timed_|recursive_timed_)?mutex\b|"
                    r"std::condition_variable|pthread_mutex_t|"
                    r"std::(lock_guard|unique_lock|scoped_lock|shared_lock)\b")
# What may use them: the wrappers, a lock that moves, and folders that are not annotated yet. A
# folder that needs it no longer must leave the list.
MAY_BE_UNSEEN = (
    "proto/base/mutex.h", "proto/base/shared_mutex.h", "proto/base/pthread_mutex.h",
    "host-daemon/execution/calls/capture.cc", "host-daemon/execution/dispatch/run_call.cc",
    "host-daemon/execution/memory/device_memory.h", "host-daemon/execution/process/guest_process.h",
    "host-daemon/softgpu", "host-daemon/state/parts/part_source.cc",
)

DECLARED = re.compile(r"^\s*(?:mutable |static |constinit |session::|gantry::)*"
                      r"(?:Mutex|SharedMutex|FutexMutex|PthreadMutex) (\w+)[^()]*;", re.M)
# Mutexes that no annotation can name, and why.
PROTECT_NO_MEMBER = {
    ("proto/snapshot/file_pages.cc", "mutex"): "local, as what it protects",
    ("host-daemon/execution/process/bulk_pages.h", "mutex_"): "the page-locking of the bulk area",
    ("host-daemon/execution/device/device.h", "making_mutex_"): "the making of the context",
    ("host-daemon/execution/process/contexts.h", "limits"):
        "the setting of a context's limit and its count",
    ("host-daemon/supervisor/sessions/session.h", "saving_"): "a snapshot, against another one",
    ("host-daemon/execution/process/captures.h", "gate"):
        "the start of a capture, against the worker's own waits for the device",
    ("host-daemon/supervisor/workers/memory_slot.cc", "g_mutex"): "a page that others share",
    ("host-daemon/state/files/prepared_file.cc", "mutex"): "local, as what it protects",
    ("guest-shim/driver/context/context.cc", "g_mutex"):
        "members of Context, whose header cannot name it",
    ("guest-shim/driver/memory/registered.cc", "g_moving"): "an exchange of pages",
    ("guest-shim/session/callbacks.cc", "g_threads_mutex"): "the start of a thread",
    ("guest-shim/session/profile.cc", "g_profile_mutex"): "the making of the profile",
    ("guest-shim/session/connection.h", "lane_mutex"): "a lane's question and answer",
    ("guest-shim/session/base/report.cc", "g_file_mutex"): "a file",
}

failures = []


def check(good, text):
    if not good:
        failures.append(text)


def errors_of(compiler, path):
    """(line, text) of each error."""
    done = subprocess.run([*compiler, path], capture_output=True, text=True)
    found = re.findall(rf"^{re.escape(str(path))}:(\d+):\d+: (?:fatal )?error: (.*)$", done.stderr,
                       re.M)
    check(found or done.returncode == 0, f"clang failed: {done.stderr[:2000]}")
    return [(int(line), text) for line, text in found]


def check_cases(compiler, folder):
    path = folder / "cases.cc"
    path.write_text(CASES)
    wanted = {number: line.split("// error: ")[1]
              for number, line in enumerate(CASES.split("\n"), 1) if "// error: " in line}
    check(len(wanted) >= 14, f"only {len(wanted)} cases are left")
    found = dict(errors_of(compiler, path))
    for number in sorted(wanted.keys() | found.keys()):
        text = found.get(number)
        check(text is not None and number in wanted and wanted[number] in text,
              f"case in line {number}: wanted {wanted.get(number)!r}, clang says {text!r}")


def check_mutations(compiler, folder, root):
    for name, old, new, wanted in MUTATIONS:
        source = (root / name).read_text()
        if old not in source:
            check(False, f"{name} has no such lock any more: {old!r}")
            continue
        path = folder / pathlib.Path(name).name
        path.write_text(source.replace(old, new, 1))
        errors = [said for _, said in errors_of(compiler, path)]
        check(errors and all("-Wthread-safety" in said for said in errors) and
              any(wanted in said for said in errors),
              f"{name} without a lock: wanted {wanted!r}, clang says {errors}")


def check_all_are_seen(root):
    used = set()
    count = 0
    for top in PRODUCT:
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cc") or path.name.endswith("_test.cc"):
                continue
            name = path.relative_to(root).as_posix()
            text = path.read_text()
            if UNSEEN.search(text):
                place = next((place for place in MAY_BE_UNSEEN
                              if name == place or name.startswith(place + "/")), None)
                used.add(place)
                check(place is not None, f"{name} has a mutex or lock that the analysis cannot see")
            for mutex in DECLARED.findall(text):
                count += 1
                named = re.search(
                    rf"GANTRY_(GUARDED_BY|REQUIRES|ACQUIRED_BEFORE)\([^()]*\b{mutex}\)", text)
                is_listed = (name, mutex) in PROTECT_NO_MEMBER
                check(named or is_listed, f"{name}: nothing says what {mutex} protects")
                check(not (named and is_listed), f"{name}: {mutex} need not be listed")
    for place in MAY_BE_UNSEEN:
        check(place in used, f"{place} need not be in MAY_BE_UNSEEN any more")
    check(count >= 60, f"only {count} mutexes were found")
    return count


def main():
    clang, flags, root, build = sys.argv[1:]
    flags = [flag for flag in flags.split(";") if flag]
    check(any("-Werror" in flag and "thread-safety" in flag for flag in flags),
          f"the build does not make these errors: {flags}")
    root = pathlib.Path(root)
    compiler = [clang, "-std=c++20", "-fsyntax-only", "-ferror-limit=0", "-fno-caret-diagnostics",
                "-I", root, "-isystem", build, *flags]
    with tempfile.TemporaryDirectory(prefix="thread_safety") as folder:
        check_cases(compiler, pathlib.Path(folder))
        check_mutations(compiler, pathlib.Path(folder), root)
    count = check_all_are_seen(root)
    for failure in failures:
        print(failure)
    print(f"thread_safety: {count} mutexes, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
