/* Functions with counts, each called at least once by every rank or by every other: included once for each form. */

static void PASTE(point_to_point, SUFFIX)(void) {
    int v[8] = {0}, w[8] = {0};
    MPI_Request q[4], spare;
    MPI_Message message;
    const int even = rank % 2 == 0, peer = rank ^ 1;
    COUNT room = 4096 + 8 * MPI_BSEND_OVERHEAD;
    void *buffer = malloc(room);
    CALLC(Buffer_attach, buffer, room);
    if (even) {
        CALLC(Send, v, 1, MPI_INT, peer, 1, MPI_COMM_WORLD);
        CALLC(Bsend, v, 2, MPI_INT, peer, 1, MPI_COMM_WORLD);
        CALLC(Ssend, v, 3, MPI_INT, peer, 1, MPI_COMM_WORLD);
        CALLC(Isend, v, 1, MPI_INT, peer, 1, MPI_COMM_WORLD, &q[0]);
        CALLC(Ibsend, v, 2, MPI_INT, peer, 1, MPI_COMM_WORLD, &q[1]);
        CALLC(Issend, v, 3, MPI_INT, peer, 1, MPI_COMM_WORLD, &q[2]);
        CALL(Waitall, 3, q, MPI_STATUSES_IGNORE);
        CALL(Barrier, MPI_COMM_WORLD);
        CALLC(Rsend, v, 4, MPI_INT, peer, 2, MPI_COMM_WORLD);
        CALLC(Irsend, v, 4, MPI_INT, peer, 2, MPI_COMM_WORLD, &q[0]);
        CALL(Wait, &q[0], MPI_STATUS_IGNORE);
        CALLC(Send_init, v, 1, MPI_INT, peer, 3, MPI_COMM_WORLD, &q[0]);
        CALLC(Bsend_init, v, 2, MPI_INT, peer, 3, MPI_COMM_WORLD, &q[1]);
        CALLC(Ssend_init, v, 3, MPI_INT, peer, 3, MPI_COMM_WORLD, &q[2]);
        CALLC(Rsend_init, v, 4, MPI_INT, peer, 3, MPI_COMM_WORLD, &q[3]);
        for (int i = 0; i < 2; i++) {
            CALL(Barrier, MPI_COMM_WORLD);
            CALL(Start, &q[0]);
            CALL(Startall, 3, &q[1]);
            CALL(Waitall, 4, q, MPI_STATUSES_IGNORE);
        }
        for (int i = 0; i < 2; i++)
            CALLC(Send, v, 5, MPI_INT, peer, 4, MPI_COMM_WORLD);
    } else {
        for (int i = 0; i < 6; i++)
            CALLC(Recv, w, 8, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < 2; i++)
            CALLC(Irecv, &w[4 * i], 4, MPI_INT, peer, 2, MPI_COMM_WORLD, &q[i]);
        CALL(Barrier, MPI_COMM_WORLD);
        CALL(Waitall, 2, q, MPI_STATUSES_IGNORE);
        static int in[4][8];
        for (int i = 0; i < 4; i++)
            CALLC(Recv_init, in[i], 8, MPI_INT, peer, 3, MPI_COMM_WORLD, &q[i]);
        for (int i = 0; i < 2; i++) {
            CALL(Startall, 4, q);
            CALL(Barrier, MPI_COMM_WORLD);
            CALL(Waitall, 4, q, MPI_STATUSES_IGNORE);
        }
        CALL(Mprobe, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        CALLC(Mrecv, w, 8, MPI_INT, &message, MPI_STATUS_IGNORE);
        CALL(Mprobe, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        CALLC(Imrecv, w, 8, MPI_INT, &message, &spare);
        CALL(Wait, &spare, MPI_STATUS_IGNORE);
    }
    for (int i = 0; i < 4; i++)
        CALL(Request_free, &q[i]);
    CALLC(Buffer_detach, &buffer, &room);
    free(buffer);
    CALLC(Sendrecv, v, 3, MPI_INT, right, 5, w, 3, MPI_INT, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CALLC(Sendrecv_replace, v, 3, MPI_INT, right, 5, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#if MPI_VERSION >= 4
    CALLC(Isendrecv, v, 3, MPI_INT, right, 5, w, 3, MPI_INT, left, 5, MPI_COMM_WORLD, &q[0]);
    CALL(Wait, &q[0], MPI_STATUS_IGNORE);
    CALLC(Isendrecv_replace, v, 3, MPI_INT, right, 5, left, 5, MPI_COMM_WORLD, &q[0]);
    CALL(Wait, &q[0], MPI_STATUS_IGNORE);
#endif
}

/* Blocking, non-blocking, and persistent, which is started twice. */
#define THREE_WAYS(NAME, STARTS, COMM, ...)                                                                                    \
    do {                                                                                                                       \
        MPI_Request q;                                                                                                         \
        CALLC(NAME, __VA_ARGS__, COMM);                                                                                        \
        CALLC(STARTS, __VA_ARGS__, COMM, &q);                                                                                  \
        CALL(Wait, &q, MPI_STATUS_IGNORE);                                                                                     \
        PERSISTENTC(NAME, __VA_ARGS__, COMM, MPI_INFO_NULL, &q);                                                               \
        for (int again = 0; again < STARTS_OF_ONE; again++) {                                                                              \
            CALL(Start, &q);                                                                                                   \
            CALL(Wait, &q, MPI_STATUS_IGNORE);                                                                                 \
        }                                                                                                                      \
        CALL(Request_free, &q);                                                                                                \
    } while (0)

static void PASTE(collectives, SUFFIX)(void) {
    double in[64] = {0}, out[64] = {0};
    COUNT counts[RANKS], rows[RANKS];
    PLACE places[RANKS], bytes[RANKS];
    MPI_Datatype types[RANKS];
    int total = 0;
    for (int i = 0; i < RANKS; i++) {
        counts[i] = i + 1;
        places[i] = total;
        total += i + 1;
        rows[i] = rank + 1;
        bytes[i] = 32 * i;
        types[i] = MPI_DOUBLE;
    }
    THREE_WAYS(Bcast, Ibcast, MPI_COMM_WORLD, in, 5, MPI_DOUBLE, 1);
    THREE_WAYS(Reduce, Ireduce, MPI_COMM_WORLD, in, out, 6, MPI_DOUBLE, MPI_MAX, 2);
    THREE_WAYS(Allreduce, Iallreduce, MPI_COMM_WORLD, MPI_IN_PLACE, out, 7, MPI_DOUBLE, MPI_SUM);
    THREE_WAYS(Gather, Igather, MPI_COMM_WORLD, in, 2, MPI_DOUBLE, out, 2, MPI_DOUBLE, 0);
    THREE_WAYS(Gatherv, Igatherv, MPI_COMM_WORLD, in, rank + 1, MPI_DOUBLE, out, counts, places, MPI_DOUBLE, 3);
    THREE_WAYS(Scatter, Iscatter, MPI_COMM_WORLD, in, 2, MPI_DOUBLE, out, 2, MPI_DOUBLE, 0);
    THREE_WAYS(Scatterv, Iscatterv, MPI_COMM_WORLD, in, counts, places, MPI_DOUBLE, out, rank + 1, MPI_DOUBLE, 3);
    THREE_WAYS(Allgather, Iallgather, MPI_COMM_WORLD, in, 3, MPI_DOUBLE, out, 3, MPI_DOUBLE);
    THREE_WAYS(Allgatherv, Iallgatherv, MPI_COMM_WORLD, in, rank + 1, MPI_DOUBLE, out, counts, places, MPI_DOUBLE);
    THREE_WAYS(Alltoall, Ialltoall, MPI_COMM_WORLD, in, 2, MPI_DOUBLE, out, 2, MPI_DOUBLE);
    THREE_WAYS(Alltoallv, Ialltoallv, MPI_COMM_WORLD, in, counts, places, MPI_DOUBLE, out, rows, places, MPI_DOUBLE);
    THREE_WAYS(Alltoallw, Ialltoallw, MPI_COMM_WORLD, in, counts, bytes, types, out, rows, bytes, types);
    THREE_WAYS(Reduce_scatter, Ireduce_scatter, MPI_COMM_WORLD, in, out, counts, MPI_DOUBLE, MPI_MIN);
    THREE_WAYS(Reduce_scatter_block, Ireduce_scatter_block, MPI_COMM_WORLD, in, out, 3, MPI_DOUBLE, MPI_PROD);
    THREE_WAYS(Scan, Iscan, MPI_COMM_WORLD, in, out, 2, MPI_DOUBLE, MPI_SUM);
    THREE_WAYS(Exscan, Iexscan, MPI_COMM_WORLD, in, out, 2, MPI_DOUBLE, MPI_SUM);
}

/* Two by two, round in the first dimension and with an edge in the second: neighbours in the order -x, +x, -y, +y. */
static void PASTE(neighbours, SUFFIX)(void) {
    MPI_Comm grid;
    int sizes[2] = {2, 2}, round[2] = {1, 0};
    double in[64] = {0}, out[64] = {0};
    COUNT counts[4] = {1, 1, 3, 4}, same[4] = {2, 2, 2, 2};
    PLACE places[4] = {0, 8, 16, 24};
    MPI_Aint bytes[4] = {0, 64, 128, 192};
    MPI_Datatype types[4] = {MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE};
    CALL(Cart_create, MPI_COMM_WORLD, 2, sizes, round, 0, &grid);
    THREE_WAYS(Neighbor_allgather, Ineighbor_allgather, grid, in, 3, MPI_DOUBLE, out, 3, MPI_DOUBLE);
    THREE_WAYS(Neighbor_allgatherv, Ineighbor_allgatherv, grid, in, 2, MPI_DOUBLE, out, same, places, MPI_DOUBLE);
    THREE_WAYS(Neighbor_alltoall, Ineighbor_alltoall, grid, in, 3, MPI_DOUBLE, out, 3, MPI_DOUBLE);
    /* Both neighbours in a round of two are the same rank, and libraries differ in which of two messages is which. */
    COUNT back[4] = {1, 1, 4, 3};
    THREE_WAYS(Neighbor_alltoallv, Ineighbor_alltoallv, grid, in, counts, places, MPI_DOUBLE, out, back, places, MPI_DOUBLE);
    THREE_WAYS(Neighbor_alltoallw, Ineighbor_alltoallw, grid, in, counts, bytes, types, out, back, bytes, types);
    CALL(Comm_free, &grid);
}

static void PASTE(windows, SUFFIX)(void) {
    int *base, local[8] = {0}, got[8] = {0};
    MPI_Win window;
    MPI_Request q;
    CALLC(Win_allocate, 256, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    CALL(Win_fence, 0, window);
    CALLC(Put, local, 3, MPI_INT, right, 5, 3, MPI_INT, window);
    CALL(Win_fence, 0, window);
    CALLC(Get, got, 2, MPI_INT, right, 5, 2, MPI_INT, window);
    CALL(Win_fence, 0, window);
    CALLC(Accumulate, local, 4, MPI_INT, right, 0, 4, MPI_INT, MPI_SUM, window);
    CALL(Win_fence, 0, window);
    CALL(Win_lock, MPI_LOCK_SHARED, right, 0, window);
    CALLC(Get_accumulate, local, 4, MPI_INT, got, 4, MPI_INT, right, 8, 4, MPI_INT, MPI_NO_OP, window);
    CALL(Win_flush, right, window);
    CALLC(Rput, local, 1, MPI_INT, right, 20, 1, MPI_INT, window, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(Rget, got, 1, MPI_INT, right, 24, 1, MPI_INT, window, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(Raccumulate, local, 1, MPI_INT, right, 28, 1, MPI_INT, MPI_MAX, window, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(Rget_accumulate, local, 1, MPI_INT, got, 1, MPI_INT, right, 32, 1, MPI_INT, MPI_SUM, window, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALL(Win_unlock, right, window);
    CALL(Win_free, &window);
    static int mine[64];
    CALLC(Win_create, mine, sizeof mine, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    CALL(Win_free, &window);
    CALLC(Win_allocate_shared, 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    CALL(Win_free, &window);
}

static void PASTE(files, SUFFIX)(void) {
    int v[16] = {0};
    MPI_File file;
    MPI_Request q;
    MPI_Status status;
    CALL(File_open, MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    CALL(File_set_view, file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    CALLC(File_write_at, file, 16 * rank, v, 16, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_write_at_all, file, 16 * rank, v, 16, MPI_INT, &status);
    CALLC(File_write, file, v, 4, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_write_all, file, v, 4, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_write_shared, file, v, 1, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_write_ordered, file, v, 2, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_iwrite_at, file, 16 * rank, v, 16, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iwrite_at_all, file, 16 * rank, v, 16, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iwrite, file, v, 1, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iwrite_all, file, v, 1, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iwrite_shared, file, v, 1, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_write_at_all_begin, file, 16 * rank, v, 16, MPI_INT);
    CALL(File_write_at_all_end, file, v, MPI_STATUS_IGNORE);
    CALLC(File_write_all_begin, file, v, 1, MPI_INT);
    CALL(File_write_all_end, file, v, MPI_STATUS_IGNORE);
    CALLC(File_write_ordered_begin, file, v, 1, MPI_INT);
    CALL(File_write_ordered_end, file, v, MPI_STATUS_IGNORE);
    CALL(File_sync, file);
    CALL(Barrier, MPI_COMM_WORLD);
    CALL(File_seek, file, 0, MPI_SEEK_SET);
    CALL(File_seek_shared, file, 0, MPI_SEEK_SET);
    CALLC(File_read_at, file, 16 * rank, v, 16, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_read_at_all, file, 16 * rank, v, 16, MPI_INT, &status);
    CALLC(File_read, file, v, 4, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_read_all, file, v, 4, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_read_shared, file, v, 1, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_read_ordered, file, v, 2, MPI_INT, MPI_STATUS_IGNORE);
    CALLC(File_iread_at, file, 16 * rank, v, 16, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iread_at_all, file, 16 * rank, v, 16, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iread, file, v, 1, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iread_all, file, v, 1, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_iread_shared, file, v, 1, MPI_INT, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALLC(File_read_at_all_begin, file, 16 * rank, v, 16, MPI_INT);
    CALL(File_read_at_all_end, file, v, MPI_STATUS_IGNORE);
    CALLC(File_read_all_begin, file, v, 1, MPI_INT);
    CALL(File_read_all_end, file, v, MPI_STATUS_IGNORE);
    CALLC(File_read_ordered_begin, file, v, 1, MPI_INT);
    CALL(File_read_ordered_end, file, v, MPI_STATUS_IGNORE);
    CALL(File_close, &file);
}

static void PASTE(local, SUFFIX)(void) {
    int v[8] = {0}, w[8];
    char packed[256];
    COUNT at = 0;
    EXTERNAL place = 0;
    MPI_Datatype column; /* two ints in every three */
    MPI_Type_vector(2, 1, 3, MPI_INT, &column);
    MPI_Type_commit(&column);
    CALLC(Pack, v, 2, column, packed, sizeof packed, &at, MPI_COMM_WORLD);
    at = 0;
    CALLC(Unpack, packed, sizeof packed, &at, w, 4, MPI_INT, MPI_COMM_WORLD);
    CALLC(Pack_external, "external32", v, 4, MPI_INT, packed, sizeof packed, &place);
    place = 0;
    CALLC(Unpack_external, "external32", packed, sizeof packed, &place, w, 4, MPI_INT);
    CALLC(Reduce_local, v, w, 8, MPI_INT, MPI_SUM);
    CALLC(Sendrecv, v, 1, column, right, 6, w, 1, column, left, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Type_free(&column);
}

static void PASTE(counted, SUFFIX)(void) {
    PASTE(point_to_point, SUFFIX)();
    PASTE(collectives, SUFFIX)();
    PASTE(neighbours, SUFFIX)();
    PASTE(windows, SUFFIX)();
    PASTE(files, SUFFIX)();
    PASTE(local, SUFFIX)();
}
#undef THREE_WAYS
