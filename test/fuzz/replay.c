/* Feeds every file of the given directories to LLVMFuzzerTestOneInput, so that past findings stay fixed without a
 * fuzzer. Prints the number of files; none at all is a failure, because then nothing was tested. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int feed(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    size_t cap = 1 << 16, n = 0, k;
    uint8_t *data = malloc(cap);
    while (data && (k = fread(data + n, 1, cap - n, f)) > 0)
        if ((n += k) == cap) data = realloc(data, cap *= 2);
    fclose(f);
    if (!data) return 0;
    uint8_t *exact = malloc(n ? n : 1); /* exact size, so that a sanitizer detects reads past the end */
    for (size_t i = 0; exact && i < n; i++) exact[i] = data[i];
    free(data);
    if (!exact) return 0;
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return 1;
}
int main(int argc, char **argv) {
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            n += feed(argv[i]);
            continue;
        }
        for (struct dirent *e; (e = readdir(d));) {
            char path[4096];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            n += feed(path);
        }
        closedir(d);
    }
    printf("%d inputs\n", n);
    return n ? 0 : 1;
}
