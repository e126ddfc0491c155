/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs of the third blind comparison of predicted with emulated times. `kinds-3 NAME` runs one of them, between its second and its third
 * MPI_Barrier:
 *
 *     paths      shortest paths of all pairs of towns (Floyd and Warshall): a broadcast of one row for each town, from changing ranks
 *     flame      a front of fire: columns of cells move to other ranks as their work changes, rank 0 gathers the work and tells the bounds
 *     windows    wave equation: one-sided puts of borders between post and wait, energies added up between fences
 *     stream     a pipeline: each rank filters blocks of samples and passes them on, messages of many sizes by matched probes
 *     tempering  magnets at 16 temperatures: neighbours compare energies and swap fields, how much they send depends on chance
 *     factor     eigenvectors by blocks: tall QR factors joined by a reduction with an operation of the program's own
 *     shared     ranks of pages: the ranks of a node share memory, and one of them speaks with the other nodes
 *
 * A step of the program runs before the first barrier and opens connections. The variable START (0 to 4) chooses the rank that comes last to the
 * second barrier, and how late. After the third barrier each program checks its result, which does not depend on the number of ranks. All run on
 * 2, 4, 8 and 16 ranks.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

/* Allocates zeros. */
static void *zeros(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

/* A pseudo-random number that depends on its argument alone (splitmix64). */
static unsigned long mix(unsigned long value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

/* The first of a rank's share of some items. */
static int first_of(int items, int of) {
    return (int)((long)items * of / ranks);
}

/* The rank that has an item. */
static int owner_of(int items, int item) {
    return (int)((((long)item + 1) * ranks - 1) / items);
}

/* paths: 384 towns. A step is 32 towns that paths may go through. */
enum { TOWNS = 384, FAR = 1 << 28, THROUGH = 32 };
static int *distances, *line, towns, first_town;

/* Roads go from each town to some towns, most of them to near ones. */
static int road(int from, int to) {
    unsigned long number = mix((unsigned long)from * TOWNS + to);
    int gap = abs(from - to);
    return gap == 0 ? 0 : number % (gap < 20 ? 4 : 40) ? FAR : (int)(number / 64 % 100) + gap;
}

static void paths_prepare(void) {
    first_town = first_of(TOWNS, rank);
    towns = first_of(TOWNS, rank + 1) - first_town;
    distances = zeros(towns * TOWNS, sizeof *distances);
    line = zeros(TOWNS, sizeof *line);
}

static void paths(int steps) {
    for (int i = 0; i < towns; i++)
        for (int j = 0; j < TOWNS; j++)
            distances[i * TOWNS + j] = road(first_town + i, j);
    for (int through = 0; through < steps * THROUGH; through++) {
        int owner = owner_of(TOWNS, through);
        if (owner == rank)
            memcpy(line, distances + (through - first_town) * TOWNS, TOWNS * sizeof *line);
        MPI_Bcast(line, TOWNS, MPI_INT, owner, MPI_COMM_WORLD);
        for (int i = 0; i < towns; i++) {
            int *row = distances + i * TOWNS, before = row[through];
            for (int j = 0; j < TOWNS; j++)
                row[j] = before + line[j] < row[j] ? before + line[j] : row[j];
        }
    }
}

/* The distances from one town of each rank, by Dijkstra's way. */
static int paths_wrong(void) {
    int length[TOWNS], done[TOWNS] = {0};
    for (int i = 0; i < TOWNS; i++)
        length[i] = i == first_town ? 0 : FAR;
    for (int turn = 0; turn < TOWNS; turn++) {
        int near = -1;
        for (int i = 0; i < TOWNS; i++)
            if (!done[i] && (near < 0 || length[i] < length[near]))
                near = i;
        done[near] = 1;
        for (int i = 0; i < TOWNS; i++)
            if (length[near] + road(near, i) < length[i])
                length[i] = length[near] + road(near, i);
    }
    return memcmp(length, distances, sizeof length) != 0;
}

/* flame: a field of 512 columns of 64 cells, a cylinder. Only burning cells have much work. */
enum { COLUMNS = 512, CELLS = 64, REBALANCE = 4 };
struct cell {
    int heat, fuel;
};
static struct cell (*cells)[CELLS], (*next_cells)[CELLS];
static int *bounds, *work, *all_work, flame_age;

static void flame_prepare(void) {
    /* Each rank has room for all columns and one beside them on each side. Its own begin at 1. */
    cells = zeros(COLUMNS + 2, sizeof *cells);
    next_cells = zeros(COLUMNS + 2, sizeof *next_cells);
    bounds = zeros(4 * (ranks + 1), sizeof *bounds);
    work = zeros(COLUMNS, sizeof *work);
    all_work = zeros(COLUMNS, sizeof *all_work);
    for (int i = 0; i <= ranks; i++)
        bounds[i] = first_of(COLUMNS, i);
    for (int i = bounds[rank]; i < bounds[rank + 1]; i++)
        for (int j = 0; j < CELLS; j++) {
            unsigned long number = mix((unsigned long)i * CELLS + j);
            int hot = i >= 60 && i < 64;
            cells[i - bounds[rank] + 1][j] = (struct cell){hot ? 40000 : 0, 20000 + (int)(number % 20000)};
        }
}

/* The heat that a cell's fuel gives. The more of it burns, the more turns that takes. */
static int burn(struct cell *cell, int *turns) {
    unsigned value = (unsigned)cell->heat;
    int burnt = cell->heat > 3000 ? cell->fuel / 6 : 0, count = burnt / 4;
    for (int turn = 0; turn < count; turn++)
        value = value * 1664525 + 1013904223;
    *turns += 16 + count;
    cell->fuel -= burnt;
    return burnt + (burnt ? (int)(value >> 28) : 0);
}

static void flame_step(void) {
    int count = bounds[rank + 1] - bounds[rank], left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    MPI_Request requests[4];
    MPI_Irecv(cells[0], 2 * CELLS, MPI_INT, left, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(cells[count + 1], 2 * CELLS, MPI_INT, right, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(cells[count], 2 * CELLS, MPI_INT, right, 0, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(cells[1], 2 * CELLS, MPI_INT, left, 1, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    for (int i = 1; i <= count; i++)
        for (int j = 0; j < CELLS; j++) {
            struct cell cell = cells[i][j];
            int beside = 3 * cells[i - 1][j].heat + cells[i + 1][j].heat + cells[i][(j + 1) % CELLS].heat + cells[i][(j + CELLS - 1) % CELLS].heat;
            int heat = (cell.heat * 2 + beside) / 8;
            cell.heat = heat + burn(&cell, &work[i - 1]) - heat / 16;
            next_cells[i][j] = cell;
        }
    struct cell(*swap)[CELLS] = cells;
    cells = next_cells;
    next_cells = swap;
}

static int least(int a, int b) {
    return a < b ? a : b;
}

static int most(int a, int b) {
    return a > b ? a : b;
}

/* Gives each rank about as much work. Columns go straight to their new ranks. */
static void flame_rebalance(void) {
    int *counts = bounds + ranks + 1, *new_bounds = counts + ranks + 1, request_count = 0, *old = bounds;
    MPI_Request *requests = zeros(2 * ranks, sizeof *requests);
    for (int i = 0; i < ranks; i++)
        counts[i] = bounds[i + 1] - bounds[i];
    MPI_Gatherv(work, counts[rank], MPI_INT, all_work, counts, bounds, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        long sum = 0, so_far = 0;
        for (int i = 0; i < COLUMNS; i++)
            sum += all_work[i];
        new_bounds[0] = 0;
        for (int i = 0, to = 1; to < ranks; i++) {
            so_far += all_work[i];
            if (so_far * ranks >= sum * to || i + 1 == COLUMNS - (ranks - to))
                new_bounds[to++] = i + 1;
        }
        new_bounds[ranks] = COLUMNS;
    }
    MPI_Bcast(new_bounds, ranks + 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++) {
        int begin = most(old[i], new_bounds[rank]), end = least(old[i + 1], new_bounds[rank + 1]);
        if (begin < end && i != rank)
            MPI_Irecv(next_cells[begin - new_bounds[rank] + 1], 2 * CELLS * (end - begin), MPI_INT, i, 2, MPI_COMM_WORLD, &requests[request_count++]);
        else if (begin < end)
            memcpy(next_cells[begin - new_bounds[rank] + 1], cells[begin - old[rank] + 1], (end - begin) * sizeof *cells);
    }
    for (int i = 0; i < ranks; i++) {
        int begin = most(old[rank], new_bounds[i]), end = least(old[rank + 1], new_bounds[i + 1]);
        if (begin < end && i != rank)
            MPI_Isend(cells[begin - old[rank] + 1], 2 * CELLS * (end - begin), MPI_INT, i, 2, MPI_COMM_WORLD, &requests[request_count++]);
    }
    MPI_Waitall(request_count, requests, MPI_STATUSES_IGNORE);
    struct cell(*swap)[CELLS] = cells;
    cells = next_cells;
    next_cells = swap;
    memcpy(bounds, new_bounds, (ranks + 1) * sizeof *bounds);
    memset(work, 0, COLUMNS * sizeof *work);
    free(requests);
}

static void flame(int steps) {
    for (int step = 0; step < steps; step++) {
        flame_step();
        if (++flame_age % REBALANCE == 0)
            flame_rebalance();
    }
}

static int flame_wrong(void) {
    unsigned long sum = 0;
    for (int i = bounds[rank]; i < bounds[rank + 1]; i++)
        for (int j = 0; j < CELLS; j++) {
            struct cell cell = cells[i - bounds[rank] + 1][j];
            sum += mix(mix((unsigned long)cell.heat << 32 | (unsigned)cell.fuel) + i * CELLS + j);
        }
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    return sum != 14627683904659833030ul;
}

/* A process grid; rows of ranks go from top to bottom. */
static int grid_size[2], grid_place[2];

/* The rank so many places down and right of this one, round the grid. */
static int neighbour(int down, int right) {
    return (grid_place[0] + down + grid_size[0]) % grid_size[0] * grid_size[1] + (grid_place[1] + right + grid_size[1]) % grid_size[1];
}

/* windows: standing waves in 512 by 512 points, round in both directions. Every tenth step rank 0 learns the squares of the field. */
enum { POINTS = 512, MEASURE = 10 };
static double *waves, *columns, *sides, *squares;
static int high, wide, wave_age;
static MPI_Win border_window, square_window;
static MPI_Group near_group;

/* The number of a point of one of the two fields; the border has numbers, too. */
static int point_at(int field, int i, int j) {
    return (field * (high + 2) + i) * (wide + 2) + j;
}

/* What the difference equation makes of the waves after so many steps. */
static double wave_at(int age, int i, int j) {
    double down = 2 * M_PI * 3 / POINTS, right = 2 * M_PI * 5 / POINTS, half = sqrt((1 - (cos(down) + cos(right)) / 2) / 2 * 0.5);
    return cos(2 * asin(half) * age) * cos(down * (grid_place[0] * high + i)) * cos(right * (grid_place[1] * wide + j));
}

static void windows_prepare(void) {
    int near[4], count = 0;
    MPI_Group all;
    MPI_Dims_create(ranks, 2, grid_size);
    grid_place[0] = rank / grid_size[1];
    grid_place[1] = rank % grid_size[1];
    high = POINTS / grid_size[0];
    wide = POINTS / grid_size[1];
    /* The two fields, and the columns that come from the left and the right. */
    int points = 2 * (high + 2) * (wide + 2);
    MPI_Win_allocate((MPI_Aint)((points + 2 * high) * sizeof *waves), sizeof *waves, MPI_INFO_NULL, MPI_COMM_WORLD, &waves, &border_window);
    columns = waves + points;
    sides = zeros(2 * high, sizeof *sides);
    MPI_Win_allocate(rank == 0 ? sizeof *squares : 0, sizeof *squares, MPI_INFO_NULL, MPI_COMM_WORLD, &squares, &square_window);
    for (int side = 0; side < 4; side++) {
        int other = neighbour(side == 0 ? -1 : side == 1, side == 2 ? -1 : side == 3), known = other == rank;
        for (int i = 0; i < count; i++)
            known |= near[i] == other;
        if (!known)
            near[count++] = other;
    }
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, count, near, &near_group);
    MPI_Group_free(&all);
    /* The field before the first step is that of one step earlier. */
    for (int field = 0; field < 2; field++)
        for (int i = 1; i <= high; i++)
            for (int j = 1; j <= wide; j++)
                waves[point_at(field, i, j)] = wave_at(-field, i - 1, j - 1);
}

/* Moves numbers to another rank's memory, or to this one's. */
static void put(const double *from, double *to, int count, int other) {
    if (other != rank)
        MPI_Put(from, count, MPI_DOUBLE, other, to - waves, count, MPI_DOUBLE, border_window);
    else
        memcpy(to, from, count * sizeof *to);
}

static void wave_row(int field, int i, int first, int last) {
    const double *from = waves + point_at(field, i, 0);
    double *to = waves + point_at(1 - field, i, 0);
    for (int j = first; j <= last; j++)
        to[j] = from[j] + 0.25 * (from[j - wide - 2] + from[j + wide + 2] + from[j - 1] + from[j + 1]) - to[j];
}

static void windows(int steps) {
    for (int step = 0; step < steps; step++, wave_age++) {
        int field = wave_age % 2;
        MPI_Win_post(near_group, 0, border_window);
        MPI_Win_start(near_group, 0, border_window);
        for (int i = 0; i < high; i++) {
            sides[i] = waves[point_at(field, i + 1, 1)];
            sides[high + i] = waves[point_at(field, i + 1, wide)];
        }
        put(waves + point_at(field, 1, 1), waves + point_at(field, high + 1, 1), wide, neighbour(-1, 0));
        put(waves + point_at(field, high, 1), waves + point_at(field, 0, 1), wide, neighbour(1, 0));
        put(sides, columns + high, high, neighbour(0, -1));
        put(sides + high, columns, high, neighbour(0, 1));
        MPI_Win_complete(border_window);
        for (int i = 2; i < high; i++)
            wave_row(field, i, 2, wide - 1);
        MPI_Win_wait(border_window);
        for (int i = 0; i < high; i++) {
            waves[point_at(field, i + 1, 0)] = columns[i];
            waves[point_at(field, i + 1, wide + 1)] = columns[high + i];
        }
        wave_row(field, 1, 1, wide);
        wave_row(field, high, 1, wide);
        for (int i = 2; i < high; i++) {
            wave_row(field, i, 1, 1);
            wave_row(field, i, wide, wide);
        }
        if ((wave_age + 1) % MEASURE == 0) {
            double sum = 0;
            for (int i = 1; i <= high; i++)
                for (int j = 1; j <= wide; j++)
                    sum += waves[point_at(1 - field, i, j)] * waves[point_at(1 - field, i, j)];
            if (rank == 0)
                *squares = 0;
            MPI_Win_fence(0, square_window);
            MPI_Accumulate(&sum, 1, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, MPI_SUM, square_window);
            MPI_Win_fence(0, square_window);
        }
    }
}

static int windows_wrong(void) {
    double worst = 0, wanted = wave_at(wave_age / MEASURE * MEASURE, -grid_place[0] * high, -grid_place[1] * wide);
    for (int i = 1; i <= high; i++)
        for (int j = 1; j <= wide; j++)
            worst = fmax(worst, fabs(waves[point_at(wave_age % 2, i, j)] - wave_at(wave_age, i - 1, j - 1)));
    if (rank == 0)
        worst = fmax(worst, fabs(*squares * 4 / POINTS / POINTS - wanted * wanted));
    MPI_Win_free(&border_window);
    MPI_Win_free(&square_window);
    return !(worst < 1e-9);
}

/* stream: 16 filters in a row, shared out to the ranks. A step is 40 blocks. Rank 0 makes a block when the 24th before it has come through. */
enum { FILTERS = 16, BLOCKS = 40, BLOCK = 1000, TAPS = 16, QUEUE = 4, AHEAD = 24 };
static unsigned long stream_sum;

static void stream_prepare(void) {}

/* Samples of a block; the last rank's answer to an earlier block goes into it. */
static int make_block(int block, unsigned answer, unsigned *samples) {
    int count = BLOCK / 10 + (int)(mix(block) % (BLOCK * 9 / 10));
    for (int i = 0; i < count; i++)
        samples[i] = (unsigned)(mix((unsigned long)block * BLOCK + i) ^ answer);
    return count;
}

/* Every fourth filter drops a sample in eight, so that blocks get shorter. */
static int filter(int number, int count, const unsigned *from, unsigned *to) {
    int kept = 0;
    for (int i = 0; i < count; i++) {
        unsigned sum = from[i];
        for (int tap = 1; tap < TAPS && tap <= i; tap++)
            sum += from[i - tap] * (unsigned)(number * TAPS + tap);
        if (number % 4 != 3 || (sum >> 29) != 0)
            to[kept++] = sum ^ sum >> 15;
    }
    return kept;
}

static void stream(int steps) {
    static unsigned buffers[QUEUE][BLOCK], spare[2][BLOCK];
    MPI_Request requests[QUEUE];
    unsigned answer = 0;
    int blocks = steps * BLOCKS, last = ranks - 1;
    for (int i = 0; i < QUEUE; i++)
        requests[i] = MPI_REQUEST_NULL;
    stream_sum = 0;
    for (int block = 0; block < blocks; block++) {
        unsigned *from = spare[0], *to = spare[1], *out = buffers[block % QUEUE];
        int count;
        if (rank == 0) {
            if (block >= AHEAD)
                MPI_Recv(&answer, 1, MPI_UNSIGNED, last, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            count = make_block(block, answer, from);
        } else {
            MPI_Message message;
            MPI_Status status;
            MPI_Mprobe(rank - 1, 0, MPI_COMM_WORLD, &message, &status);
            MPI_Get_count(&status, MPI_UNSIGNED, &count);
            MPI_Mrecv(from, count, MPI_UNSIGNED, &message, MPI_STATUS_IGNORE);
        }
        for (int number = first_of(FILTERS, rank); number < first_of(FILTERS, rank + 1); number++) {
            count = filter(number, count, from, to);
            unsigned *swap = from;
            from = to;
            to = swap;
        }
        if (rank < last) {
            MPI_Wait(&requests[block % QUEUE], MPI_STATUS_IGNORE);
            memcpy(out, from, count * sizeof *out);
            MPI_Isend(out, count, MPI_UNSIGNED, rank + 1, 0, MPI_COMM_WORLD, &requests[block % QUEUE]);
        } else {
            answer = (unsigned)count;
            for (int i = 0; i < count; i++)
                answer = answer * 31 + from[i];
            stream_sum += mix(answer + (unsigned long)block);
            if (block + AHEAD < blocks)
                MPI_Send(&answer, 1, MPI_UNSIGNED, 0, 1, MPI_COMM_WORLD);
        }
    }
    MPI_Waitall(QUEUE, requests, MPI_STATUSES_IGNORE);
}

static int stream_wrong(void) {
    return rank == ranks - 1 && stream_sum != 1475176344006031201ul;
}

/* tempering: 16 fields of 48 by 48 spins, shared out to the ranks. A step is four sweeps of each field, and a try to swap neighbours. */
enum { REPLICAS = 16, FIELD = 48, SWEEPS = 4 };
static signed char (*spins)[FIELD * FIELD];
static int replicas, first_replica, *energies, replica_age, lowest;
static unsigned (*chances)[2];
static double heat_of[REPLICAS];

static void tempering_prepare(void) {
    first_replica = first_of(REPLICAS, rank);
    replicas = first_of(REPLICAS, rank + 1) - first_replica;
    spins = zeros(replicas, sizeof *spins);
    energies = zeros(REPLICAS, sizeof *energies);
    chances = zeros(replicas, sizeof *chances);
    for (int i = 0; i < REPLICAS; i++)
        heat_of[i] = (4. + i) / 40;
    for (int i = 0; i < replicas; i++) {
        /* The chance of a flip that costs 4 or 8 units of energy. */
        double chance = heat_of[first_replica + i];
        chances[i][0] = (unsigned)(chance * 4294967295.);
        chances[i][1] = (unsigned)(chance * chance * 4294967295.);
        for (int j = 0; j < FIELD * FIELD; j++)
            spins[i][j] = mix((unsigned long)(first_replica + i) << 32 | j) % 2 ? 1 : -1;
    }
}

static int sum_beside(const signed char *field, int i, int j) {
    return field[(i + 1) % FIELD * FIELD + j] + field[(i + FIELD - 1) % FIELD * FIELD + j] + field[i * FIELD + (j + 1) % FIELD] +
           field[i * FIELD + (j + FIELD - 1) % FIELD];
}

static void sweep(int replica, int number) {
    signed char *field = spins[replica];
    for (int i = 0; i < FIELD; i++)
        for (int j = 0; j < FIELD; j++) {
            int cost = 2 * field[i * FIELD + j] * sum_beside(field, i, j);
            if (cost > 0) {
                unsigned long at = ((unsigned long)number * REPLICAS + first_replica + replica) * FIELD * FIELD + i * FIELD + j;
                if ((unsigned)(mix(at) >> 32) >= chances[replica][cost / 4 - 1])
                    continue;
            }
            field[i * FIELD + j] = -field[i * FIELD + j];
        }
}

static int energy_of(const signed char *field) {
    int energy = 0;
    for (int i = 0; i < FIELD; i++)
        for (int j = 0; j < FIELD; j++)
            energy -= field[i * FIELD + j] * sum_beside(field, i, j);
    return energy / 2;
}

/* Whether two neighbours swap their fields: always if the colder one gets the lower energy, else by chance. */
static int swap_wanted(int colder, int cold_energy, int hot_energy) {
    double chance = 1;
    for (int energy = cold_energy; energy < hot_energy; energy += 4)
        chance *= heat_of[colder] / heat_of[colder + 1];
    return (double)(mix((unsigned long)replica_age * REPLICAS + colder + 5000000000) >> 32) < chance * 4294967296.;
}

static void tempering(int steps) {
    signed char kept[FIELD * FIELD];
    for (int step = 0; step < steps; step++, replica_age++) {
        for (int i = 0; i < replicas; i++) {
            for (int number = 0; number < SWEEPS; number++)
                sweep(i, replica_age * SWEEPS + number);
            energies[first_replica + i] = energy_of(spins[i]);
        }
        for (int colder = replica_age % 2; colder + 1 < REPLICAS; colder += 2) {
            int cold = colder - first_replica, hot = cold + 1, cold_here = cold >= 0 && cold < replicas, hot_here = hot >= 0 && hot < replicas;
            if (cold_here && hot_here) {
                if (swap_wanted(colder, energies[colder], energies[colder + 1])) {
                    memcpy(kept, spins[cold], sizeof kept);
                    memcpy(spins[cold], spins[hot], sizeof kept);
                    memcpy(spins[hot], kept, sizeof kept);
                }
            } else if (cold_here || hot_here) {
                int other = cold_here ? rank + 1 : rank - 1, mine = cold_here ? colder : colder + 1, theirs = cold_here ? colder + 1 : colder;
                MPI_Sendrecv(&energies[mine], 1, MPI_INT, other, 0, &energies[theirs], 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                if (swap_wanted(colder, energies[colder], energies[colder + 1]))
                    MPI_Sendrecv_replace(spins[cold_here ? cold : hot], FIELD * FIELD, MPI_SIGNED_CHAR, other, 1, other, 1, MPI_COMM_WORLD,
                                         MPI_STATUS_IGNORE);
            }
        }
        if (replica_age % 8 == 7) {
            int low = 0;
            for (int i = 0; i < replicas; i++)
                low = energies[first_replica + i] < low ? energies[first_replica + i] : low;
            MPI_Allreduce(&low, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        }
    }
}

static int tempering_wrong(void) {
    unsigned long sum = 0;
    for (int i = 0; i < replicas; i++)
        for (int j = 0; j < FIELD * FIELD; j++)
            sum += mix(((unsigned long)(first_replica + i) * FIELD * FIELD + j) * 2 + (spins[i][j] > 0));
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    return sum + (unsigned long)(long)lowest != 12149508501787746518ul;
}

/* factor: 16 vectors of 16,000 numbers, multiplied by a matrix of three diagonals, and made orthogonal again in each step. */
enum { TALL = 16000, VECTORS = 16 };
static double *block, *product, triangle[VECTORS * VECTORS];
static int rows;
static MPI_Op join;
static MPI_Datatype triangle_type;

/* Makes vectors orthogonal and writes their upper factor. */
static void orthogonal(double *columns, int height, double *upper) {
    memset(upper, 0, VECTORS * VECTORS * sizeof *upper);
    for (int j = 0; j < VECTORS; j++) {
        double *column = columns + j * height, sum = 0;
        for (int i = 0; i < height; i++)
            sum += column[i] * column[i];
        sum = sqrt(sum);
        upper[j * VECTORS + j] = sum;
        for (int i = 0; i < height; i++)
            column[i] /= sum;
        for (int k = j + 1; k < VECTORS; k++) {
            double *other = columns + k * height;
            sum = 0;
            for (int i = 0; i < height; i++)
                sum += column[i] * other[i];
            upper[j * VECTORS + k] = sum;
            for (int i = 0; i < height; i++)
                other[i] -= sum * column[i];
        }
    }
}

/* The reduction's operation: the upper factor of two upper factors, one above the other. */
static void join_factors(void *from, void *to, int *count, MPI_Datatype *type) {
    double both[2 * VECTORS * VECTORS];
    (void)type;
    for (int of = 0; of < *count; of++) {
        double *above = (double *)from + of * VECTORS * VECTORS, *below = (double *)to + of * VECTORS * VECTORS;
        for (int i = 0; i < VECTORS; i++)
            for (int j = 0; j < VECTORS; j++) {
                both[j * 2 * VECTORS + i] = above[i * VECTORS + j];
                both[j * 2 * VECTORS + VECTORS + i] = below[i * VECTORS + j];
            }
        orthogonal(both, 2 * VECTORS, below);
    }
}

static void factor_prepare(void) {
    rows = first_of(TALL, rank + 1) - first_of(TALL, rank);
    block = zeros(VECTORS * (rows + 2), sizeof *block);
    product = zeros(VECTORS * rows, sizeof *product);
    MPI_Type_contiguous(VECTORS * VECTORS, MPI_DOUBLE, &triangle_type);
    MPI_Type_commit(&triangle_type);
    MPI_Op_create(join_factors, 0, &join);
    for (int j = 0; j < VECTORS; j++)
        for (int i = 0; i < rows; i++)
            block[j * (rows + 2) + i + 1] = (double)(mix((unsigned long)j * TALL + first_of(TALL, rank) + i) % 2000) / 1000 - 1;
}

static void factor(int steps) {
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL, first = first_of(TALL, rank);
    double edge[2][VECTORS], border[VECTORS];
    for (int step = 0; step < steps; step++) {
        for (int j = 0; j < VECTORS; j++) {
            edge[0][j] = block[j * (rows + 2) + 1];
            edge[1][j] = block[j * (rows + 2) + rows];
        }
        for (int side = 0; side < 2; side++) {
            memset(border, 0, sizeof border);
            MPI_Sendrecv(edge[side], VECTORS, MPI_DOUBLE, side ? down : up, side, border, VECTORS, MPI_DOUBLE, side ? up : down, side, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
            for (int j = 0; j < VECTORS; j++)
                block[j * (rows + 2) + (side ? 0 : rows + 1)] = border[j];
        }
        for (int j = 0; j < VECTORS; j++) {
            double *from = block + j * (rows + 2) + 1, *to = product + j * rows;
            for (int i = 0; i < rows; i++)
                to[i] = (2 + (first + i) % 1000 * 0.004) * from[i] - from[i - 1] - from[i + 1];
        }
        /* The vectors times the inverse of their upper factor are orthogonal. */
        for (int j = 0; j < VECTORS; j++)
            memcpy(block + j * (rows + 2) + 1, product + j * rows, rows * sizeof *product);
        orthogonal(product, rows, triangle);
        MPI_Allreduce(MPI_IN_PLACE, triangle, 1, triangle_type, join, MPI_COMM_WORLD);
        for (int j = 0; j < VECTORS; j++) {
            double *column = block + j * (rows + 2) + 1;
            for (int k = 0; k < j; k++)
                for (int i = 0; i < rows; i++)
                    column[i] -= triangle[k * VECTORS + j] * block[k * (rows + 2) + 1 + i];
            for (int i = 0; i < rows; i++)
                column[i] /= triangle[j * VECTORS + j];
        }
    }
}

/* Products of vectors, and the sum of the factor's diagonal. */
static int factor_wrong(void) {
    double products[VECTORS * VECTORS] = {0}, worst = 0, sum = 0;
    for (int j = 0; j < VECTORS; j++)
        for (int k = 0; k < VECTORS; k++)
            for (int i = 1; i <= rows; i++)
                products[j * VECTORS + k] += block[j * (rows + 2) + i] * block[k * (rows + 2) + i];
    MPI_Allreduce(MPI_IN_PLACE, products, VECTORS * VECTORS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int j = 0; j < VECTORS; j++) {
        sum += triangle[j * VECTORS + j];
        for (int k = 0; k < VECTORS; k++)
            worst = fmax(worst, fabs(products[j * VECTORS + k] - (j == k)));
    }
    MPI_Op_free(&join);
    return !(worst < 1e-9) || !(fabs(sum / 121.483202770065 - 1) < 1e-9);
}

/* shared: 16,000 pages with 48 links to each. Whole numbers, so that the order of sums does not matter. */
enum { PAGES = 16000, PAGE_LINKS = 48, SCALE = 1 << 20 };
static unsigned *values[2];
static int *page_links, first_page, pages, page_age, change, *node_counts, *node_starts;
static MPI_Win value_window;
static MPI_Comm node, leaders;

static void shared_prepare(void) {
    int node_rank, disp, position, node_pages, leader;
    MPI_Aint size;
    MPI_Comm order;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &node_rank);
    MPI_Comm_split(MPI_COMM_WORLD, node_rank ? MPI_UNDEFINED : 0, rank, &leaders);
    /* The ranks of a node have pages one after the other. */
    leader = rank;
    MPI_Bcast(&leader, 1, MPI_INT, 0, node);
    MPI_Comm_split(MPI_COMM_WORLD, 0, leader * ranks + rank, &order);
    MPI_Comm_rank(order, &position);
    MPI_Comm_free(&order);
    first_page = first_of(PAGES, position);
    pages = first_of(PAGES, position + 1) - first_page;
    MPI_Win_allocate_shared(node_rank ? 0 : 2 * PAGES * sizeof **values, sizeof **values, MPI_INFO_NULL, node, &values[0], &value_window);
    MPI_Win_shared_query(value_window, 0, &size, &disp, &values[0]);
    values[1] = values[0] + PAGES;
    MPI_Win_lock_all(MPI_MODE_NOCHECK, value_window);
    if (node_rank == 0)
        for (int i = 0; i < PAGES; i++)
            values[0][i] = SCALE;
    MPI_Reduce(&pages, &node_pages, 1, MPI_INT, MPI_SUM, 0, node);
    if (node_rank == 0) {
        int nodes;
        MPI_Comm_size(leaders, &nodes);
        node_counts = zeros(2 * nodes, sizeof *node_counts);
        node_starts = node_counts + nodes;
        MPI_Allgather(&node_pages, 1, MPI_INT, node_counts, 1, MPI_INT, leaders);
        for (int i = 1; i < nodes; i++)
            node_starts[i] = node_starts[i - 1] + node_counts[i - 1];
    }
    page_links = zeros(pages * PAGE_LINKS, sizeof *page_links);
    for (int i = 0; i < pages * PAGE_LINKS; i++) {
        unsigned long number = mix((unsigned long)first_page * PAGE_LINKS + i);
        page_links[i] = (int)(number % 8 ? number / 8 % PAGES : number / 8 % 100);
    }
    MPI_Win_sync(value_window);
    MPI_Bcast(&node_pages, 1, MPI_INT, 0, node);
    MPI_Win_sync(value_window);
}

/* The sum tells the node's first rank that all are done, and the broadcast tells the others that the values are there. */
static void shared(int steps) {
    for (int step = 0; step < steps; step++, page_age++) {
        const unsigned *from = values[page_age % 2];
        unsigned *to = values[1 - page_age % 2];
        int largest = 0, all = 0;
        for (int i = 0; i < pages; i++) {
            unsigned long sum = 0;
            for (int k = 0; k < PAGE_LINKS; k++)
                sum += from[page_links[i * PAGE_LINKS + k]];
            to[first_page + i] = (unsigned)(SCALE / 8 + sum / PAGE_LINKS * (1 + (first_page + i) % 13) / 8);
            int moved = abs((int)(to[first_page + i] - from[first_page + i]));
            largest = moved > largest ? moved : largest;
        }
        MPI_Win_sync(value_window);
        MPI_Reduce(&largest, &all, 1, MPI_INT, MPI_MAX, 0, node);
        if (leaders != MPI_COMM_NULL) {
            MPI_Win_sync(value_window);
            MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_UNSIGNED, to, node_counts, node_starts, MPI_UNSIGNED, leaders);
            MPI_Allreduce(&all, &change, 1, MPI_INT, MPI_MAX, leaders);
            MPI_Win_sync(value_window);
        }
        MPI_Bcast(&change, 1, MPI_INT, 0, node);
        MPI_Win_sync(value_window);
    }
}

static int shared_wrong(void) {
    unsigned long sum = (unsigned long)change;
    for (int i = 0; i < PAGES; i++)
        sum += mix((unsigned long)i << 32 | values[page_age % 2][i]);
    MPI_Win_unlock_all(value_window);
    MPI_Win_free(&value_window);
    return sum != 4470682471439145173ul;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*prepare)(void), (*run)(int);
        int (*wrong)(void), steps;
    } programs[] = {
        {"paths", paths_prepare, paths, paths_wrong, TOWNS / THROUGH},
        {"flame", flame_prepare, flame, flame_wrong, 120},
        {"windows", windows_prepare, windows, windows_wrong, 99},
        {"stream", stream_prepare, stream, stream_wrong, 10},
        {"tempering", tempering_prepare, tempering, tempering_wrong, 95},
        {"factor", factor_prepare, factor, factor_wrong, 14},
        {"shared", shared_prepare, shared, shared_wrong, 100},
    };
    const char *start = getenv("START");
    int late = start ? atoi(start) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double *from = zeros(ranks, sizeof *from), *to = zeros(ranks, sizeof *to);
    for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++)
        if (argc > 1 && !strcmp(argv[1], programs[i].name)) {
            programs[i].prepare();
            MPI_Alltoall(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, MPI_COMM_WORLD);
            programs[i].run(1);
            MPI_Barrier(MPI_COMM_WORLD);
            volatile long turns = 0;
            while (rank == late * 5 % ranks && turns < 100000L * (late + 1))
                turns++;
            MPI_Barrier(MPI_COMM_WORLD);
            programs[i].run(programs[i].steps);
            MPI_Barrier(MPI_COMM_WORLD);
            if (programs[i].wrong()) {
                fprintf(stderr, "%s: wrong result on rank %d\n", programs[i].name, rank);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
            MPI_Finalize();
            if (rank == 0)
                printf("%s: OK\n", programs[i].name);
            return 0;
        }
    fprintf(stderr, "usage: kinds-3 NAME\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
}
