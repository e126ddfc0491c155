/* Checks a shared file system from all ranks: shared FOLDER CHECK... Each check prints "CHECK: ok" from rank 0, or ends the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 5000, ROUNDS = 4 };

static int rank, ranks;
static char path[4096];
static const char *check;

#define NEED(condition) need((condition) != 0, #condition, __LINE__)
static void need(int holds, const char *what, int line) {
    if (holds)
        return;
    fprintf(stderr, "%s: rank %d, line %d: not %s (%s)\n", check, rank, line, what, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_File file_open(int mode) {
    MPI_File file;
    NEED(MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    return file;
}

static int number(int who, int at) { return who * 1000003 + at; }

static void fill(int *data, int who) {
    for (int i = 0; i < BLOCK; i++)
        data[i] = number(who, i);
}

static int holds(const int *data, int who) {
    for (int i = 0; i < BLOCK; i++)
        if (data[i] != number(who, i))
            return 0;
    return 1;
}

/* Every rank writes its block, and reads the block of the next rank, which is on another node. */
static void blocks(int collective) {
    static int data[BLOCK];
    MPI_Status status;
    MPI_Offset bytes = sizeof data;
    int next = (rank + 1) % ranks;
    MPI_File file = file_open(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int round = 0; round < ROUNDS; round++) {
        fill(data, rank + round * ranks);
        NEED((collective ? MPI_File_write_at_all : MPI_File_write_at)(file, rank * bytes, data, BLOCK, MPI_INT, &status) == MPI_SUCCESS);
        NEED(MPI_File_sync(file) == MPI_SUCCESS);
        MPI_Barrier(MPI_COMM_WORLD);
        NEED(MPI_File_sync(file) == MPI_SUCCESS);
        memset(data, 0, sizeof data);
        NEED((collective ? MPI_File_read_at_all : MPI_File_read_at)(file, next * bytes, data, BLOCK, MPI_INT, &status) == MPI_SUCCESS);
        NEED(holds(data, next + round * ranks));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Offset size;
    NEED(MPI_File_get_size(file, &size) == MPI_SUCCESS && size == ranks * bytes);
    NEED(MPI_File_close(&file) == MPI_SUCCESS);
}

static void individual(void) { blocks(0); }
static void collective(void) { blocks(1); }

/* Elements of all ranks by turns, through a view with holes. */
static void view(void) {
    static int data[BLOCK];
    MPI_Datatype spread;
    MPI_Status status;
    MPI_Type_vector(BLOCK, 1, ranks, MPI_INT, &spread);
    MPI_Type_commit(&spread);
    MPI_File file = file_open(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int step = 0; step < 2; step++) {
        int who = (rank + step) % ranks;
        NEED(MPI_File_set_view(file, who * sizeof(int), MPI_INT, spread, "native", MPI_INFO_NULL) == MPI_SUCCESS);
        if (step == 0) {
            fill(data, rank);
            NEED(MPI_File_write_all(file, data, BLOCK, MPI_INT, &status) == MPI_SUCCESS);
            NEED(MPI_File_sync(file) == MPI_SUCCESS);
            MPI_Barrier(MPI_COMM_WORLD);
            NEED(MPI_File_sync(file) == MPI_SUCCESS);
        } else {
            NEED(MPI_File_read_all(file, data, BLOCK, MPI_INT, &status) == MPI_SUCCESS);
            NEED(holds(data, who));
        }
    }
    NEED(MPI_File_close(&file) == MPI_SUCCESS);
    MPI_Type_free(&spread);
}

/* The shared file pointer: records in any order, each once; then in the order of ranks. */
static void pointer(void) {
    MPI_Status status;
    MPI_File file = file_open(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int round = 0; round < ROUNDS; round++) {
        int mine = number(rank, round);
        NEED(MPI_File_write_shared(file, &mine, 1, MPI_INT, &status) == MPI_SUCCESS);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int last = number(rank, ROUNDS);
    NEED(MPI_File_write_ordered(file, &last, 1, MPI_INT, &status) == MPI_SUCCESS);
    NEED(MPI_File_sync(file) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    NEED(MPI_File_sync(file) == MPI_SUCCESS);
    int count = ranks * (ROUNDS + 1), *all = calloc(count, sizeof *all), seen = 0;
    NEED(MPI_File_read_at(file, 0, all, count, MPI_INT, &status) == MPI_SUCCESS);
    for (int who = 0; who < ranks; who++) {
        for (int round = 0; round < ROUNDS; round++)
            for (int i = 0; i < ranks * ROUNDS; i++)
                seen += all[i] == number(who, round);
        NEED(all[ranks * ROUNDS + who] == number(who, ROUNDS));
    }
    NEED(seen == ranks * ROUNDS);
    free(all);
    NEED(MPI_File_close(&file) == MPI_SUCCESS);
}

/* Atomic mode: of overlapping writes, the file has one whole. */
static void atomic(void) {
    static int data[BLOCK];
    MPI_Status status;
    MPI_File file = file_open(MPI_MODE_CREATE | MPI_MODE_RDWR);
    NEED(MPI_File_set_atomicity(file, 1) == MPI_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        fill(data, rank);
        NEED(MPI_File_write_at(file, 0, data, BLOCK, MPI_INT, &status) == MPI_SUCCESS);
        NEED(MPI_File_read_at(file, 0, data, BLOCK, MPI_INT, &status) == MPI_SUCCESS);
        NEED(holds(data, data[0] / 1000003));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    NEED(MPI_File_close(&file) == MPI_SUCCESS);
}

/* A counter that all ranks raise under a lock of fcntl(2). */
static void locks(void) {
    int file = open(path, O_RDWR | O_CREAT, 0666);
    NEED(file >= 0);
    for (int i = 0; i < 8; i++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = sizeof(int)};
        NEED(fcntl(file, F_SETLKW, &lock) == 0);
        int count = 0;
        NEED(pread(file, &count, sizeof count, 0) >= 0);
        count++;
        NEED(pwrite(file, &count, sizeof count, 0) == sizeof count);
        lock.l_type = F_UNLCK;
        NEED(fcntl(file, F_SETLK, &lock) == 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* NFS reads anew what another node may have written when a file is opened or locked, not while it is open for writing. */
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = sizeof(int)};
    int count = 0;
    NEED(fcntl(file, F_SETLKW, &lock) == 0);
    NEED(pread(file, &count, sizeof count, 0) == sizeof count && count == 8 * ranks);
    close(file);
}

/* What one rank has written and closed, all others read when they open the file next, though its length stays the same. */
static void reopen(void) {
    for (int round = 0; round < 3 * ROUNDS; round++) {
        int writer = round % ranks, value = -1;
        if (rank == writer) {
            int file = open(path, O_WRONLY | O_CREAT, 0666);
            NEED(file >= 0 && write(file, &round, sizeof round) == sizeof round && close(file) == 0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        int file = open(path, O_RDONLY);
        NEED(file >= 0 && read(file, &value, sizeof value) == sizeof value && value == round);
        close(file);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* Of all ranks that create a file, one succeeds; a rename replaces what others see. */
static void names(void) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666), made = file >= 0, all = 0;
    NEED(made || errno == EEXIST);
    MPI_Allreduce(&made, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    NEED(all == 1);
    char other[4200];
    struct stat of;
    snprintf(other, sizeof other, "%s.renamed", path);
    NEED(!made || (close(file) == 0 && rename(path, other) == 0));
    MPI_Barrier(MPI_COMM_WORLD);
    NEED(stat(other, &of) == 0 && stat(path, &of) < 0 && errno == ENOENT);
}

/* A program learns that the file system is full, and goes on once there is room. */
static void full(void) {
    static char data[1 << 18];
    if (rank == ranks - 1) {
        int file = open(path, O_WRONLY | O_CREAT, 0666), writes = 0;
        ssize_t written;
        NEED(file >= 0);
        while ((written = write(file, data, sizeof data)) == sizeof data)
            writes++;
        NEED(written >= 0 || errno == ENOSPC);
        written = write(file, data, sizeof data);
        NEED(written < 0 && errno == ENOSPC);
        close(file);
        NEED(writes > 0 && unlink(path) == 0);
        file = open(path, O_WRONLY | O_CREAT, 0666);
        /* The server closes a file, and frees its blocks, a moment after it has answered. */
        for (int i = 0; i < 100 && (written = write(file, data, sizeof data)) < 0; i++)
            usleep(10000);
        NEED(file >= 0 && written == sizeof data && close(file) == 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A file that each node has, opened for reading. */
static void same(void) {
    char start[4];
    MPI_Status status;
    MPI_File file;
    NEED(MPI_File_open(MPI_COMM_WORLD, "./run", MPI_MODE_RDONLY, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    NEED(MPI_File_read_at(file, 0, start, sizeof start, MPI_CHAR, &status) == MPI_SUCCESS);
    NEED(!memcmp(start, "#!/b", sizeof start));
    NEED(MPI_File_close(&file) == MPI_SUCCESS);
}

static const struct {
    const char *name;
    void (*run)(void);
} checks[] = {{"individual", individual}, {"collective", collective}, {"view", view},   {"pointer", pointer}, {"atomic", atomic},
              {"locks", locks},           {"reopen", reopen},         {"names", names}, {"full", full},
              {"same", same}};

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 2; i < argc; i++) {
        int found = 0;
        for (size_t k = 0; k < sizeof checks / sizeof *checks; k++) {
            if (strcmp(argv[i], checks[k].name))
                continue;
            check = argv[i];
            snprintf(path, sizeof path, "%s/%s", argv[1], check);
            double began = MPI_Wtime();
            checks[k].run();
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0)
                printf("%s: ok (%.1f ms)\n", check, 1e3 * (MPI_Wtime() - began));
            found = 1;
        }
        check = argv[i];
        NEED(found);
    }
    MPI_Finalize();
    return 0;
}
