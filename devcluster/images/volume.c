/* Makes or removes the directory of a volume: volume -p PATH -s BYTES -m MODE -a create|delete. */
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_DIRECTORIES 16

static int drop(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status, (void)type, (void)place;
    return remove(path);
}

static int make(const char *path) {
    if (mkdir(path, 0777) != 0 && errno != EEXIST) return -1;
    /* Whoever the pods run as may write, whatever the mask says. */
    return chmod(path, 0777);
}

int main(int count, char **words) {
    const char *path = "", *action = "";
    for (int option; (option = getopt(count, words, "p:s:m:a:")) != -1;) {
        if (option == 'p') path = optarg;
        if (option == 'a') action = optarg;
        if (option == '?') return 2;
    }
    int failed = strcmp(action, "create") == 0
                     ? make(path)
                     : nftw(path, drop, OPEN_DIRECTORIES, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT;
    if (failed) perror(path);
    return failed != 0;
}
