/* Calls that change files, counted and, at one of them, made to fail: preloaded before the C library.

   Only calls on files below one directory count. What happens at the chosen call:
     'e' it fails with EIO, once                'n' it and every later write fails with ENOSPC
     'b' the process is killed before it        'a' the process is killed after it
     'h' half of the bytes are written, then the process is killed
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char prefix[PATH_MAX];
static long chosen = -1;
static char kind = 0;
static long counted = 0;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void injection_arm(const char *directory, long number, int what)
{
    pthread_mutex_lock(&lock);
    snprintf(prefix, sizeof prefix, "%s", directory);
    chosen = number;
    kind = (char)what;
    counted = 0;
    pthread_mutex_unlock(&lock);
}

long injection_count(void) { return counted; }

__attribute__((constructor)) static void from_environment(void)
{
    const char *asked = getenv("PENSTOCK_INJECTION"); /* kind:number:directory */
    long number;
    char what;
    int used = 0;
    if (asked && sscanf(asked, "%c:%ld:%n", &what, &number, &used) == 2 && used)
        injection_arm(asked + used, number, what);
}

static int below(const char *path)
{
    size_t length = strlen(prefix);
    return length && strncmp(path, prefix, length) == 0;
}

static int fd_below(int fd)
{
    char link[64], path[PATH_MAX];
    if (!prefix[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return below(path);
}

static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

enum { GO, FAIL, AFTER, HALF };

/* What to do at this call; FAIL has set errno. */
static int judge(int here, int writes)
{
    int verdict = GO;
    if (!here)
        return GO;
    pthread_mutex_lock(&lock);
    counted++;
    if (counted == chosen) {
        if (kind == 'e') { errno = EIO; verdict = FAIL; }
        else if (kind == 'n') { errno = ENOSPC; verdict = FAIL; }
        else if (kind == 'b') die();
        else if (kind == 'a') verdict = AFTER;
        else if (kind == 'h') { if (writes) verdict = HALF; else die(); }
    } else if (kind == 'n' && chosen > 0 && counted > chosen && writes) {
        errno = ENOSPC;
        verdict = FAIL;
    }
    pthread_mutex_unlock(&lock);
    return verdict;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define DONE(result) do { long kept_ = (long)(result); if (verdict == AFTER) die(); return kept_; } while (0)

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    int verdict = judge(fd_below(fd), 1);
    if (verdict == FAIL) return -1;
    if (verdict == HALF) { real(fd, data, size / 2); die(); }
    DONE(real(fd, data, size));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    int verdict = judge(fd_below(fd), 1);
    if (verdict == FAIL) return -1;
    if (verdict == HALF) { real(fd, data, size / 2, at); die(); }
    DONE(real(fd, data, size, at));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int verdict = judge(fd_below(fd), 1);
    if (verdict == FAIL) return -1;
    if (verdict == HALF) { real(fd, pieces, (count + 1) / 2); die(); }
    DONE(real(fd, pieces, count));
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t at)
{
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    int verdict = judge(fd_below(fd), 1);
    if (verdict == FAIL) return -1;
    if (verdict == HALF) { real(fd, pieces, (count + 1) / 2, at); die(); }
    DONE(real(fd, pieces, count, at));
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) { return pwritev64(fd, pieces, count, at); }

ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t at, int flags)
{
    REAL(ssize_t, "pwritev64v2", int, const struct iovec *, int, off64_t, int);
    int verdict = judge(fd_below(fd), 1);
    if (verdict == FAIL) return -1;
    if (verdict == HALF) { real(fd, pieces, (count + 1) / 2, at, flags); die(); }
    DONE(real(fd, pieces, count, at, flags));
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t at, int flags)
{
    return pwritev64v2(fd, pieces, count, at, flags);
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags)
{
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    int verdict = judge(fd_below(out), 1);
    if (verdict == FAIL) return -1;
    if (verdict == HALF) { real(in, from, out, to, size / 2, flags); die(); }
    DONE(real(in, from, out, to, size, flags));
}

ssize_t sendfile64(int out, int in, off64_t *from, size_t size)
{
    REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
    int verdict = judge(fd_below(out), 1);
    if (verdict == FAIL) return -1;
    if (verdict == HALF) { real(out, in, from, size / 2); die(); }
    DONE(real(out, in, from, size));
}

ssize_t sendfile(int out, int in, off_t *from, size_t size) { return sendfile64(out, in, from, size); }

#define ON_FD(name) \
    int name(int fd) \
    { \
        REAL(int, #name, int); \
        int verdict = judge(fd_below(fd), 0); \
        if (verdict == FAIL) return -1; \
        DONE(real(fd)); \
    }
ON_FD(fsync)
ON_FD(fdatasync)

int ftruncate64(int fd, off64_t size)
{
    REAL(int, "ftruncate64", int, off64_t);
    int verdict = judge(fd_below(fd), 0);
    if (verdict == FAIL) return -1;
    DONE(real(fd, size));
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int truncate64(const char *path, off64_t size)
{
    REAL(int, "truncate64", const char *, off64_t);
    int verdict = judge(below(path), 0);
    if (verdict == FAIL) return -1;
    DONE(real(path, size));
}

int truncate(const char *path, off_t size) { return truncate64(path, size); }

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    int verdict = judge(below(to), 0);
    if (verdict == FAIL) return -1;
    DONE(real(from, to));
}

int renameat(int fromdir, const char *from, int todir, const char *to)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    int verdict = judge(below(to), 0);
    if (verdict == FAIL) return -1;
    DONE(real(fromdir, from, todir, to));
}

int renameat2(int fromdir, const char *from, int todir, const char *to, unsigned flags)
{
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    int verdict = judge(below(to), 0);
    if (verdict == FAIL) return -1;
    DONE(real(fromdir, from, todir, to, flags));
}

int link(const char *from, const char *to)
{
    REAL(int, "link", const char *, const char *);
    int verdict = judge(below(to), 0);
    if (verdict == FAIL) return -1;
    DONE(real(from, to));
}

int linkat(int fromdir, const char *from, int todir, const char *to, int flags)
{
    REAL(int, "linkat", int, const char *, int, const char *, int);
    int verdict = judge(below(to), 0);
    if (verdict == FAIL) return -1;
    DONE(real(fromdir, from, todir, to, flags));
}

int unlink(const char *path)
{
    REAL(int, "unlink", const char *);
    int verdict = judge(below(path), 0);
    if (verdict == FAIL) return -1;
    DONE(real(path));
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    int verdict = judge(below(path), 0);
    if (verdict == FAIL) return -1;
    DONE(real(path, mode));
}

/* Making a file counts, reading one does not. */
#define OPENS(name, ...) \
    int verdict = judge(here, 0); \
    if (verdict == FAIL) return -1; \
    DONE(__VA_ARGS__)

int open64(const char *path, int flags, ...)
{
    REAL(int, "open64", const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    int mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, int) : 0;
    va_end(rest);
    int here = (flags & O_CREAT) && below(path);
    OPENS("open64", real(path, flags, mode));
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, int) : 0;
    va_end(rest);
    return open64(path, flags, mode);
}
