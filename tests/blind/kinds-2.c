/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs of the second blind comparison of predicted with emulated times. `kinds-2 NAME` runs one of them, between its second and its third
 * MPI_Barrier:
 *
 *     sparse    conjugate gradients on an unstructured matrix: neighbourhood collectives on a graph of ranks, sums of one number
 *     plasma    particles in cells: those that leave a rank go to its neighbours in messages of changing sizes, taken as they come
 *     fluid     lattice Boltzmann in two dimensions: blocks with edges and corners from eight neighbours, columns as vector datatypes
 *     align     local alignment of sequences: a wavefront of bands of rows through a chain of ranks
 *     kmeans    clusters of points: sums of all ranks, numbering by MPI_Scan, lists of changes of uneven lengths
 *     product   product of dense matrices: blocks go round the rows and columns of a process grid, one or two layers of it
 *     overlap   implicit steps by pipelined conjugate gradients: sums and broadcasts of large fields beside computation
 *     counters  tasks numbered by shared counters: each rank takes the next one by MPI_Fetch_and_op
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

/* sparse: a graph of 40,000 vertices with four edges from each, most of them to near vertices. */
enum { ROWS = 40000, LINKS = 4 };
static int rows, first_row, near_ranks, *starts, *entries, *give_counts, *give_starts, *take_counts, *take_starts, *gives, given;
static double *diagonal, *answer, *wanted, *rest, *way, *image, *given_values;
static MPI_Comm mesh;

/* The other end of an edge. */
static int link_of(int from, int edge) {
    unsigned long number = mix((unsigned long)from * LINKS + edge);
    int far = edge == 0 && number % 4 == 0;
    return (int)((from + 1 + number / 4 % 300 + (far ? 9000 : 0)) % ROWS);
}

static int ascending(const void *left, const void *right) {
    long a = *(const long *)left, b = *(const long *)right;
    return (a > b) - (a < b);
}

/* Sorts numbers and removes equal ones. */
static int unique(long *numbers, int count) {
    int kept = 0;
    qsort(numbers, count, sizeof *numbers, ascending);
    for (int i = 0; i < count; i++)
        if (i == 0 || numbers[i] != numbers[i - 1])
            numbers[kept++] = numbers[i];
    return kept;
}

static int is_mine(int item) {
    return item >= first_row && item < first_row + rows;
}

/* Own rows of the image of a vector that has the others' values behind its own. */
static void multiply(const double *from, double *to) {
    for (int i = 0; i < rows; i++) {
        double sum = diagonal[i] * from[i];
        for (int k = starts[i]; k < starts[i + 1]; k++)
            sum -= from[entries[k]];
        to[i] = sum;
    }
}

static double solution_at(long item) {
    return (double)(mix(item + 12345) % 2000) / 1000 - 1;
}

static void sparse_prepare(void) {
    long *out = zeros(2 * LINKS * ROWS, sizeof *out), *in = zeros(2 * LINKS * ROWS, sizeof *in), *links = zeros(2 * LINKS * ROWS, sizeof *links);
    int count = 0, all = 0, *places = zeros(ROWS, sizeof *places), *near_list = zeros(ranks, sizeof *near_list);
    first_row = first_of(ROWS, rank);
    rows = first_of(ROWS, rank + 1) - first_row;
    diagonal = zeros(rows, sizeof *diagonal);
    starts = zeros(rows + 1, sizeof *starts);
    /* Edges, each from both of its ends; values that this rank gives and takes, ordered by the other rank. */
    for (int from = 0; from < ROWS; from++)
        for (int edge = 0; edge < 2 * LINKS; edge++) {
            int to = link_of(from, edge / 2), a = edge % 2 ? to : from, b = edge % 2 ? from : to;
            if (!is_mine(a))
                continue;
            links[all++] = (long)a * ROWS + b;
            starts[a - first_row + 1]++;
            if (!is_mine(b)) {
                out[count] = (long)owner_of(ROWS, b) * ROWS + a;
                in[count++] = (long)owner_of(ROWS, b) * ROWS + b;
            }
        }
    int taken = unique(in, count);
    given = unique(out, count);
    give_counts = zeros(4 * ranks, sizeof *give_counts);
    give_starts = give_counts + ranks;
    take_counts = give_counts + 2 * ranks;
    take_starts = give_counts + 3 * ranks;
    gives = zeros(given, sizeof *gives);
    for (int i = 0; i < taken; i++) {
        if (i == 0 || in[i] / ROWS != in[i - 1] / ROWS) {
            take_starts[near_ranks] = i;
            near_list[near_ranks++] = (int)(in[i] / ROWS);
        }
        take_counts[near_ranks - 1]++;
        places[in[i] % ROWS] = rows + i;
    }
    for (int i = 0, near = -1; i < given; i++) {
        if (i == 0 || out[i] / ROWS != out[i - 1] / ROWS)
            give_starts[++near] = i;
        give_counts[near]++;
        gives[i] = (int)(out[i] % ROWS) - first_row;
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, near_ranks, near_list, take_counts, near_ranks, near_list, give_counts, MPI_INFO_NULL, 0, &mesh);
    /* The matrix. Columns of other ranks come after this rank's own. */
    for (int i = 0; i < rows; i++) {
        diagonal[i] = 1 + starts[i + 1];
        starts[i + 1] += starts[i];
        places[first_row + i] = i;
    }
    qsort(links, all, sizeof *links, ascending);
    entries = zeros(all, sizeof *entries);
    for (int i = 0; i < all; i++)
        entries[i] = places[links[i] % ROWS];
    answer = zeros(rows, sizeof *answer);
    wanted = zeros(rows, sizeof *wanted);
    rest = zeros(rows, sizeof *rest);
    way = zeros(rows + taken, sizeof *way);
    image = zeros(rows, sizeof *image);
    given_values = zeros(given, sizeof *given_values);
    for (int i = 0; i < rows + taken; i++)
        way[i] = solution_at(i < rows ? first_row + i : in[i - rows] % ROWS);
    multiply(way, wanted);
}

static double sum_of_products(const double *a, const double *b) {
    double sum = 0, all;
    for (int i = 0; i < rows; i++)
        sum += a[i] * b[i];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, mesh);
    return all;
}

static void sparse(int steps) {
    for (int i = 0; i < rows; i++) {
        answer[i] = 0;
        way[i] = rest[i] = wanted[i];
    }
    double square = sum_of_products(rest, rest);
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < given; i++)
            given_values[i] = way[gives[i]];
        MPI_Neighbor_alltoallv(given_values, give_counts, give_starts, MPI_DOUBLE, way + rows, take_counts, take_starts, MPI_DOUBLE, mesh);
        multiply(way, image);
        double length = square / sum_of_products(way, image), before = square;
        for (int i = 0; i < rows; i++) {
            answer[i] += length * way[i];
            rest[i] -= length * image[i];
        }
        square = sum_of_products(rest, rest);
        for (int i = 0; i < rows; i++)
            way[i] = rest[i] + square / before * way[i];
    }
}

static int sparse_wrong(void) {
    double worst = 0;
    for (int i = 0; i < rows; i++)
        worst = fmax(worst, fabs(answer[i] - solution_at(first_row + i)));
    return !(worst < 1e-8);
}

/* A process grid; rows of ranks go from top to bottom. */
static int grid_size[2], grid_place[2];

static void make_grid(void) {
    grid_size[0] = grid_size[1] = 0;
    MPI_Dims_create(ranks, 2, grid_size);
    grid_place[0] = rank / grid_size[1];
    grid_place[1] = rank % grid_size[1];
}

/* The rank so many places down and right of this one, round the grid. */
static int neighbour(int down, int right) {
    return (grid_place[0] + down + grid_size[0]) % grid_size[0] * grid_size[1] + (grid_place[1] + right + grid_size[1]) % grid_size[1];
}

/*
 * plasma: 64,000 charges in 64 by 64 cells. Places and speeds are whole numbers, 2^26 of them a cell, so that the order of charges does not
 * matter.
 */
enum { MESH = 64, CHARGES = 64000, CELL_BITS = 26, NEAR = 8 };
struct charge {
    unsigned x, y, number;
    int speed_x, speed_y;
};
static struct charge *charges, *leaving[NEAR], *coming[NEAR];
static int charge_count, moves, near_count, near_of[NEAR], *near_places, high, wide;
static int *density, *edges;
static long energy;
static MPI_Datatype charge_type;

static int owner_of_charge(const struct charge *charge) {
    return (int)(charge->y >> CELL_BITS) / high * grid_size[1] + (int)(charge->x >> CELL_BITS) / wide;
}

static void plasma_prepare(void) {
    make_grid();
    high = MESH / grid_size[0];
    wide = MESH / grid_size[1];
    charges = zeros(CHARGES, sizeof *charges);
    density = zeros((high + 2) * (wide + 2), sizeof *density);
    edges = zeros(4 * MESH, sizeof *edges);
    near_places = zeros(ranks, sizeof *near_places);
    near_places[rank] = -1;
    for (int i = 0; i < 9; i++) {
        int to = neighbour(i / 3 - 1, i % 3 - 1);
        if (to != rank && near_places[to] == 0) {
            leaving[near_count] = zeros(CHARGES, sizeof **leaving);
            coming[near_count] = zeros(CHARGES, sizeof **coming);
            near_of[near_count++] = to;
            near_places[to] = near_count;
        }
    }
    MPI_Type_contiguous(sizeof *charges / sizeof(int), MPI_INT, &charge_type);
    MPI_Type_commit(&charge_type);
    /* Most charges are in the middle; all drift to the right. */
    for (unsigned i = 0; i < CHARGES; i++) {
        unsigned long a = mix(2 * i), b = mix(2 * i + 1);
        struct charge charge = {(unsigned)(a & 0xffffffff) / 2 + (unsigned)(a >> 32) / 2, (unsigned)(b & 0xffffffff) / 2 + (unsigned)(b >> 32) / 2, i,
                                (int)(mix(a) % (1 << CELL_BITS)), (int)(mix(b) % (1 << CELL_BITS)) - (1 << (CELL_BITS - 1))};
        if (owner_of_charge(&charge) == rank)
            charges[charge_count++] = charge;
    }
}

/* How many charges each cell has, with the cells of neighbours above, below, left and right. */
static void count_charges(void) {
    static const int down[4] = {-1, 1, 0, 0}, right[4] = {0, 0, -1, 1};
    MPI_Request requests[8];
    int line = wide + 2;
    memset(density, 0, (high + 2) * line * sizeof *density);
    for (int i = 0; i < charge_count; i++)
        density[((charges[i].y >> CELL_BITS) % high + 1) * line + (charges[i].x >> CELL_BITS) % wide + 1]++;
    for (int i = 0; i < high; i++) {
        edges[i] = density[(i + 1) * line + 1];
        edges[MESH + i] = density[(i + 1) * line + wide];
    }
    for (int side = 0; side < 4; side++) {
        int *outer = side == 0 ? density + 1 : side == 1 ? density + (high + 1) * line + 1 : edges + side * MESH;
        int *inner = side == 0 ? density + line + 1 : side == 1 ? density + high * line + 1 : edges + (side - 2) * MESH;
        int count = side < 2 ? wide : high, other = neighbour(down[side], right[side]);
        MPI_Irecv(outer, count, MPI_INT, other, side ^ 1, MPI_COMM_WORLD, &requests[2 * side]);
        MPI_Isend(inner, count, MPI_INT, other, side, MPI_COMM_WORLD, &requests[2 * side + 1]);
    }
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < high; i++) {
        density[(i + 1) * line] = edges[2 * MESH + i];
        density[(i + 1) * line + wide + 1] = edges[3 * MESH + i];
    }
}

/* A speed after a push, at most two cells a step. */
static int pushed(int speed, int push) {
    int most = 1 << (CELL_BITS + 1);
    speed += push * (1 << (CELL_BITS - 11));
    return speed > most ? most : speed < -most ? -most : speed;
}

/* Charges go away from dense cells. */
static void move_charges(int *counts) {
    int line = wide + 2;
    memset(counts, 0, NEAR * sizeof *counts);
    energy = 0;
    for (int i = 0; i < charge_count;) {
        struct charge *charge = &charges[i];
        const int *cell = density + ((charge->y >> CELL_BITS) % high + 1) * line + (charge->x >> CELL_BITS) % wide + 1;
        charge->speed_x = pushed(charge->speed_x, cell[-1] - cell[1]);
        charge->speed_y = pushed(charge->speed_y, cell[-line] - cell[line]);
        charge->x += (unsigned)charge->speed_x;
        charge->y += (unsigned)charge->speed_y;
        energy += ((long)charge->speed_x * charge->speed_x + (long)charge->speed_y * charge->speed_y) >> CELL_BITS;
        int owner = owner_of_charge(charge);
        if (owner == rank) {
            i++;
        } else {
            int near = near_places[owner] - 1;
            leaving[near][counts[near]++] = *charge;
            *charge = charges[--charge_count];
        }
    }
}

static void plasma(int steps) {
    MPI_Request in[NEAR], out[NEAR];
    MPI_Status statuses[NEAR];
    int counts[NEAR], places[NEAR], done, count;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < near_count; i++)
            MPI_Irecv(coming[i], CHARGES, charge_type, near_of[i], 4, MPI_COMM_WORLD, &in[i]);
        count_charges();
        move_charges(counts);
        for (int i = 0; i < near_count; i++)
            MPI_Isend(leaving[i], counts[i], charge_type, near_of[i], 4, MPI_COMM_WORLD, &out[i]);
        for (int left = near_count; left > 0; left -= done) {
            MPI_Waitsome(near_count, in, &done, places, statuses);
            for (int i = 0; i < done; i++) {
                MPI_Get_count(&statuses[i], charge_type, &count);
                memcpy(charges + charge_count, coming[places[i]], count * sizeof *charges);
                charge_count += count;
            }
        }
        MPI_Waitall(near_count, out, MPI_STATUSES_IGNORE);
        if (moves++ % 4 == 0)
            MPI_Allreduce(MPI_IN_PLACE, &energy, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    }
}

static int plasma_wrong(void) {
    unsigned long sums[2] = {0, charge_count};
    for (int i = 0; i < charge_count; i++)
        sums[0] += mix(mix((unsigned long)charges[i].x << 32 | charges[i].y) + charges[i].number);
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    return sums[1] != CHARGES || sums[0] != 10562539930917015087ul;
}

/* fluid: vortices in 256 by 256 points. Nine densities of a point lie together. */
enum { POINTS = 256, WAYS = 9, WAVES = 4 };
static const int way_x[WAYS] = {0, 1, 0, -1, 0, 1, -1, -1, 1}, way_y[WAYS] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
static const double speed = 0.05, viscosity = 0.1;
static double (*fields[2])[WAYS];
static int times;
static MPI_Datatype point_type, line_type, pillar_type;

/* Densities at rest in a flow. */
static double balanced(int way, double mass, double x, double y) {
    double weight = way == 0 ? 4. / 9 : way < 5 ? 1. / 9 : 1. / 36, along = way_x[way] * x + way_y[way] * y;
    return weight * mass * (1 + 3 * along + 4.5 * along * along - 1.5 * (x * x + y * y));
}

/* The flow and the mass at a point of this rank's block, at the start (Taylor and Green). */
static double vortex(int i, int j, double *x, double *y) {
    double wave = 2 * M_PI * WAVES / POINTS, right = wave * (grid_place[1] * wide + j), down = wave * (grid_place[0] * high + i);
    *x = speed * sin(right) * cos(down);
    *y = -speed * cos(right) * sin(down);
    return 1 + 0.75 * speed * speed * (cos(2 * right) + cos(2 * down));
}

static void fluid_prepare(void) {
    make_grid();
    high = POINTS / grid_size[0];
    wide = POINTS / grid_size[1];
    MPI_Type_contiguous(WAYS, MPI_DOUBLE, &point_type);
    MPI_Type_contiguous(wide * WAYS, MPI_DOUBLE, &line_type);
    MPI_Type_vector(high, WAYS, (wide + 2) * WAYS, MPI_DOUBLE, &pillar_type);
    MPI_Type_commit(&point_type);
    MPI_Type_commit(&line_type);
    MPI_Type_commit(&pillar_type);
    for (int field = 0; field < 2; field++)
        fields[field] = zeros((high + 2) * (wide + 2), sizeof *fields[field]);
    for (int i = 1; i <= high; i++)
        for (int j = 1; j <= wide; j++) {
            double x, y, mass = vortex(i - 1, j - 1, &x, &y);
            for (int way = 0; way < WAYS; way++)
                fields[0][i * (wide + 2) + j][way] = balanced(way, mass, x, y);
        }
}

/* Fills the border of a field. */
static void fluid_borders(double (*field)[WAYS]) {
    MPI_Request requests[16];
    int count = 0, line = wide + 2;
    for (int i = 0; i < 9; i++) {
        int down = i / 3 - 1, right = i % 3 - 1, other = neighbour(down, right);
        int outer = (down < 0 ? 0 : down > 0 ? high + 1 : 1) * line + (right < 0 ? 0 : right > 0 ? wide + 1 : 1);
        int inner = (down > 0 ? high : 1) * line + (right > 0 ? wide : 1);
        MPI_Datatype type = down && right ? point_type : down ? line_type : pillar_type;
        if (i == 4)
            continue;
        MPI_Irecv(field[outer], 1, type, other, 8 - i, MPI_COMM_WORLD, &requests[count++]);
        MPI_Isend(field[inner], 1, type, other, i, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
}

/* Mass and flow of a point. */
static double flow(const double *point, double *x, double *y) {
    double mass = 0;
    for (int way = 0; way < WAYS; way++)
        mass += point[way];
    *x = (point[1] - point[3] + point[5] - point[6] - point[7] + point[8]) / mass;
    *y = (point[2] - point[4] + point[5] + point[6] - point[7] - point[8]) / mass;
    return mass;
}

static void fluid(int steps) {
    double relaxation = 1 / (3 * viscosity + 0.5);
    for (int step = 0; step < steps; step++, times++) {
        double(*from)[WAYS] = fields[times % 2], (*to)[WAYS] = fields[1 - times % 2];
        fluid_borders(from);
        for (int i = 1; i <= high; i++)
            for (int j = 1; j <= wide; j++) {
                double *point = to[i * (wide + 2) + j], x, y;
                for (int way = 0; way < WAYS; way++)
                    point[way] = from[(i - way_y[way]) * (wide + 2) + j - way_x[way]][way];
                double mass = flow(point, &x, &y);
                for (int way = 0; way < WAYS; way++)
                    point[way] += relaxation * (balanced(way, mass, x, y) - point[way]);
            }
    }
}

/* The vortices lose speed as theory says. */
static int fluid_wrong(void) {
    double wave = 2 * M_PI * WAVES / POINTS, factor = exp(-2 * viscosity * wave * wave * times), worst = 0, mass = 0;
    for (int i = 1; i <= high; i++)
        for (int j = 1; j <= wide; j++) {
            double x, y, right, down;
            mass += flow(fields[times % 2][i * (wide + 2) + j], &x, &y);
            vortex(i - 1, j - 1, &right, &down);
            worst = fmax(worst, fmax(fabs(x - factor * right), fabs(y - factor * down)));
        }
    MPI_Allreduce(MPI_IN_PLACE, &mass, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return !(worst < 0.02 * speed) || !(fabs(mass / POINTS / POINTS - 1) < 1e-9);
}

/* align: queries of 512 letters against 8192 letters, of which each rank has a part. A step is a query. */
enum { LETTERS = 8192, QUERY = 512, BAND = 32, OPEN = 5, EXTEND = 1, QUERIES = 8 };
static int *above, *gaps, letters, best[QUERIES];
static char *text;

static void align_prepare(void) {
    letters = first_of(LETTERS, rank + 1) - first_of(LETTERS, rank);
    above = zeros(letters, sizeof *above);
    gaps = zeros(letters, sizeof *gaps);
    text = zeros(letters, 1);
    for (int i = 0; i < letters; i++)
        text[i] = (char)(mix(first_of(LETTERS, rank) + i) % 4);
}

/* A query is a part of the text with some letters changed and some left out. */
static char query_letter(int query, int i) {
    unsigned long number = mix((unsigned long)query * QUERY + i + 1000000);
    return (char)(number % 8 == 0 ? number / 8 % 4 : mix(query * 900 + i + i / 50) % 4);
}

/* A row of the table, from the values left of it to those at its end. Returns the best score so far. */
static int align_row(char letter, int corner, int *score, int *gap, int most) {
    int left = *score, across = *gap;
    for (int j = 0; j < letters; j++) {
        int down = gaps[j] - EXTEND, value = corner + (text[j] == letter ? 2 : -3);
        across = across - EXTEND > left - OPEN ? across - EXTEND : left - OPEN;
        down = down > above[j] - OPEN ? down : above[j] - OPEN;
        value = value > across ? value : across;
        value = value > down ? value : down;
        value = value > 0 ? value : 0;
        most = value > most ? value : most;
        corner = above[j];
        gaps[j] = down;
        above[j] = left = value;
    }
    *score = left;
    *gap = across;
    return most;
}

static void align(int steps) {
    int edge[2][BAND], found[QUERIES] = {0};
    for (int query = 0; query < steps; query++) {
        int corner = 0;
        memset(above, 0, letters * sizeof *above);
        memset(gaps, 0, letters * sizeof *gaps);
        for (int band = 0; band < QUERY; band += BAND) {
            memset(edge, 0, sizeof edge);
            if (rank > 0)
                MPI_Recv(edge, 2 * BAND, MPI_INT, rank - 1, query, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; i < BAND; i++) {
                int next_corner = edge[0][i];
                found[query] = align_row(query_letter(query, band + i), corner, &edge[0][i], &edge[1][i], found[query]);
                corner = next_corner;
            }
            if (rank + 1 < ranks)
                MPI_Send(edge, 2 * BAND, MPI_INT, rank + 1, query, MPI_COMM_WORLD);
        }
    }
    MPI_Reduce(found, best, steps, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
}

static int align_wrong(void) {
    static const int known[QUERIES] = {819, 684, 805, 779, 729, 702, 741, 744};
    return rank == 0 && memcmp(best, known, sizeof known);
}

/* kmeans: 40,000 points of eight whole numbers round 24 centres. All ranks know the cluster of each point. */
enum { SAMPLES = 40000, AXES = 8, CENTRES = 24 };
static int (*samples)[AXES], (*changes)[2], (*all_changes)[2], sample_count, *clusters;
static long centres[CENTRES][AXES + 1];

/* Half of a point's numbers depend on its group. */
static int sample_at(int sample, int axis) {
    unsigned long group = mix(sample) % (CENTRES + 6), noise = mix((unsigned long)sample * AXES + axis + 7);
    return (int)(mix(group * AXES + axis) % 30000 + noise % 8000 + (noise >> 32) % 8000);
}

static void kmeans_prepare(void) {
    int first = first_of(SAMPLES, rank);
    sample_count = first_of(SAMPLES, rank + 1) - first;
    samples = zeros(sample_count, sizeof *samples);
    changes = zeros(sample_count, sizeof *changes);
    all_changes = zeros(SAMPLES, sizeof *all_changes);
    clusters = zeros(SAMPLES, sizeof *clusters);
    for (int i = 0; i < sample_count; i++)
        for (int axis = 0; axis < AXES; axis++)
            samples[i][axis] = sample_at(first + i, axis);
}

/* The cluster whose centre is nearest to a point. */
static int nearest(const int *sample) {
    long least = 0;
    int at = -1;
    for (int cluster = 0; cluster < CENTRES; cluster++) {
        long square = 0;
        for (int axis = 0; axis < AXES; axis++)
            square += (sample[axis] - centres[cluster][axis]) * (sample[axis] - centres[cluster][axis]);
        if (at < 0 || square < least) {
            least = square;
            at = cluster;
        }
    }
    return at;
}

static void kmeans(int steps) {
    int *ends = zeros(3 * ranks, sizeof *ends), *counts = ends + ranks, *places = ends + 2 * ranks, first = first_of(SAMPLES, rank);
    for (int cluster = 0; cluster < CENTRES; cluster++)
        for (int axis = 0; axis < AXES; axis++)
            centres[cluster][axis] = sample_at(cluster * 1001, axis);
    for (int i = 0; i < SAMPLES; i++)
        clusters[i] = -1;
    for (int step = 0; step < steps; step++) {
        int changed = 0, end;
        long sums[CENTRES][AXES + 1] = {{0}};
        for (int i = 0; i < sample_count; i++) {
            int cluster = nearest(samples[i]);
            for (int axis = 0; axis < AXES; axis++)
                sums[cluster][axis] += samples[i][axis];
            sums[cluster][AXES]++;
            if (cluster != clusters[first + i]) {
                changes[changed][0] = first + i;
                changes[changed++][1] = cluster;
            }
        }
        /* Changes are numbered in the order of the points. */
        MPI_Scan(&changed, &end, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allgather(&end, 1, MPI_INT, ends, 1, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < ranks; i++) {
            places[i] = i ? 2 * ends[i - 1] : 0;
            counts[i] = 2 * ends[i] - places[i];
        }
        MPI_Allgatherv(changes, 2 * changed, MPI_INT, all_changes, counts, places, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < ends[ranks - 1]; i++)
            clusters[all_changes[i][0]] = all_changes[i][1];
        MPI_Allreduce(MPI_IN_PLACE, sums, CENTRES * (AXES + 1), MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int cluster = 0; cluster < CENTRES; cluster++)
            for (int axis = 0; axis < AXES && sums[cluster][AXES]; axis++)
                centres[cluster][axis] = sums[cluster][axis] / sums[cluster][AXES];
    }
    free(ends);
}

static int kmeans_wrong(void) {
    unsigned long sum = 0;
    for (int i = 0; i < SAMPLES; i++)
        sum += mix((unsigned long)i * CENTRES + clusters[i]);
    return sum != 8761526805528431484ul;
}

/* product: matrices of 64 rows and columns for each step. Each layer of the grid does a part of the sums. */
enum { TILE = 64 };
static int layers, layer, side, grid_row, grid_column, tall, deep;
static double *factors[2], *result;
static MPI_Comm row, column, depth;

static void product_prepare(void) {
    for (layers = 1; layers < 3; layers++) {
        side = (int)lround(sqrt((double)ranks / layers));
        if (side * side * layers == ranks)
            break;
    }
    if (layers == 3)
        MPI_Abort(MPI_COMM_WORLD, 2);
    layer = rank / (side * side);
    grid_row = rank / side % side;
    grid_column = rank % side;
    MPI_Comm_split(MPI_COMM_WORLD, layer * side + grid_row, grid_column, &row);
    MPI_Comm_split(MPI_COMM_WORLD, layer * side + grid_column, grid_row, &column);
    MPI_Comm_split(MPI_COMM_WORLD, grid_row * side + grid_column, layer, &depth);
}

/* A small whole number, so that all sums are exact. */
static double factor_at(int factor, int i, int j) {
    return (double)(mix(((unsigned long)factor << 40) + ((unsigned long)i << 20) + j) % 9) - 4;
}

/* Moves a block so many places back. */
static void shift(double *block, int places, MPI_Comm comm, int place) {
    if (places % side)
        MPI_Sendrecv_replace(block, tall * deep, MPI_DOUBLE, (place + side - places) % side, 0, (place + places) % side, 0, comm, MPI_STATUS_IGNORE);
}

static void product(int steps) {
    tall = steps * TILE / side;
    deep = tall / layers;
    for (int factor = 0; factor < 2; factor++) {
        free(factors[factor]);
        factors[factor] = zeros(tall * deep, sizeof **factors);
    }
    free(result);
    result = zeros(tall * tall, sizeof *result);
    for (int i = 0; i < tall; i++)
        for (int k = 0; k < deep; k++) {
            factors[0][i * deep + k] = factor_at(0, grid_row * tall + i, (layer * side + grid_column) * deep + k);
            factors[1][k * tall + i] = factor_at(1, (layer * side + grid_row) * deep + k, grid_column * tall + i);
        }
    shift(factors[0], grid_row, row, grid_column);
    shift(factors[1], grid_column, column, grid_row);
    for (int round = 0; round < side; round++) {
        for (int i = 0; i < tall; i++)
            for (int k = 0; k < deep; k++) {
                double value = factors[0][i * deep + k], *from = factors[1] + k * tall, *to = result + i * tall;
                for (int j = 0; j < tall; j++)
                    to[j] += value * from[j];
            }
        if (round + 1 < side) {
            shift(factors[0], 1, row, grid_column);
            shift(factors[1], 1, column, grid_row);
        }
    }
    if (layers > 1)
        MPI_Reduce(layer ? result : MPI_IN_PLACE, layer ? NULL : result, tall * tall, MPI_DOUBLE, MPI_SUM, 0, depth);
}

/* Some of the numbers, each summed anew. */
static int product_wrong(void) {
    for (int check = 0; check < 50 && layer == 0; check++) {
        int i = (int)(mix(check) % tall), j = (int)(mix(check + 50) % tall);
        double sum = 0;
        for (int k = 0; k < tall * side; k++)
            sum += factor_at(0, grid_row * tall + i, k) * factor_at(1, k, grid_column * tall + j);
        if (result[i * tall + j] != sum)
            return 1;
    }
    return 0;
}

/* overlap: a field of 384 by 384 points in strips; rank 0 has the sources of each step. */
enum { WIDTH = 384, ITERATIONS = 12 };
enum { FIELD, SEARCH, SEARCHED, REST, RESTED, TWICE, SLOPE, VECTORS };
static double *vectors[VECTORS], *sources[2];
static int lines, age;

static void overlap_prepare(void) {
    lines = first_of(WIDTH, rank + 1) - first_of(WIDTH, rank);
    for (int i = 0; i < VECTORS; i++)
        vectors[i] = zeros((lines + 2) * WIDTH, sizeof **vectors);
    for (int i = 0; i < 2; i++)
        sources[i] = zeros(WIDTH * WIDTH, sizeof **sources);
}

static void heat_line(const double *from, double *to) {
    for (int j = 0; j < WIDTH; j++) {
        double sum = from[j - WIDTH] + from[j + WIDTH] + (j > 0 ? from[j - 1] : 0) + (j + 1 < WIDTH ? from[j + 1] : 0);
        to[j] = 3 * from[j] - 0.5 * sum;
    }
}

/* What an implicit step makes of a field: the lines between first, then those beside the neighbours. */
static void heat(double *from, double *to) {
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, below = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    MPI_Request requests[4];
    MPI_Irecv(from, WIDTH, MPI_DOUBLE, up, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(from + (lines + 1) * WIDTH, WIDTH, MPI_DOUBLE, below, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(from + WIDTH, WIDTH, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(from + lines * WIDTH, WIDTH, MPI_DOUBLE, below, 0, MPI_COMM_WORLD, &requests[3]);
    for (int i = 2; i < lines; i++)
        heat_line(from + i * WIDTH, to + i * WIDTH);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    heat_line(from + WIDTH, to + WIDTH);
    heat_line(from + lines * WIDTH, to + lines * WIDTH);
}

/* Solves for the next field, from the old field as a guess. The sums of an iteration are under way while the next image is computed. */
static void solve(const double *source) {
    double **v = vectors, square = 0, length = 0, sums[2], all[2];
    MPI_Request request;
    heat(v[FIELD], v[TWICE]);
    for (int i = WIDTH; i < (lines + 1) * WIDTH; i++) {
        v[REST][i] = v[FIELD][i] + source[i - WIDTH] - v[TWICE][i];
        v[SEARCH][i] = v[SEARCHED][i] = v[SLOPE][i] = 0;
    }
    heat(v[REST], v[RESTED]);
    for (int iteration = 0; iteration < ITERATIONS; iteration++) {
        sums[0] = sums[1] = 0;
        for (int i = WIDTH; i < (lines + 1) * WIDTH; i++) {
            sums[0] += v[REST][i] * v[REST][i];
            sums[1] += v[REST][i] * v[RESTED][i];
        }
        MPI_Iallreduce(sums, all, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
        heat(v[RESTED], v[TWICE]);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        double ratio = iteration ? all[0] / square : 0;
        length = all[0] / (all[1] - (iteration ? ratio * all[0] / length : 0));
        square = all[0];
        for (int i = WIDTH; i < (lines + 1) * WIDTH; i++) {
            v[SLOPE][i] = v[TWICE][i] + ratio * v[SLOPE][i];
            v[SEARCHED][i] = v[RESTED][i] + ratio * v[SEARCHED][i];
            v[SEARCH][i] = v[REST][i] + ratio * v[SEARCH][i];
            v[FIELD][i] += length * v[SEARCH][i];
            v[REST][i] -= length * v[SEARCHED][i];
            v[RESTED][i] -= length * v[SLOPE][i];
        }
    }
}

/* Rank 0 makes the sources of a step and sends them to all. */
static void send_sources(int step, MPI_Request *request) {
    double *to = sources[step % 2];
    for (int i = 0; i < WIDTH * WIDTH && rank == 0; i++)
        to[i] = (double)(mix((unsigned long)step * WIDTH * WIDTH + i) % 1000) / 1000;
    MPI_Ibcast(to, WIDTH * WIDTH, MPI_DOUBLE, 0, MPI_COMM_WORLD, request);
}

static void overlap(int steps) {
    MPI_Request request;
    send_sources(age, &request);
    for (int step = 0; step < steps; step++, age++) {
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (step + 1 < steps)
            send_sources(age + 1, &request);
        solve(sources[age % 2] + first_of(WIDTH, rank) * WIDTH);
    }
}

static int overlap_wrong(void) {
    double sums[2] = {0, 0};
    for (int i = WIDTH; i < (lines + 1) * WIDTH; i++) {
        sums[0] += vectors[FIELD][i] * vectors[FIELD][i];
        sums[1] += vectors[REST][i] * vectors[REST][i];
    }
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return !(fabs(sums[0] / 1775615.43297662 - 1) < 1e-9) || !(sums[1] < 1e-9 * sums[0]);
}

/* counters: a counter on rank 0 for each kind of tasks. A step is 100 tasks of each kind. */
enum { KINDS = 4, TASKS = 100 };
static long *next_tasks, first_counter;
static unsigned long done_sum;
static MPI_Win window;

static void counters_prepare(void) {
    size_t size = rank == 0 ? 2 * KINDS * sizeof *next_tasks : 0;
    MPI_Win_allocate((MPI_Aint)size, sizeof *next_tasks, MPI_INFO_NULL, MPI_COMM_WORLD, &next_tasks, &window);
    memset(next_tasks, 0, size);
    MPI_Win_lock_all(0, window);
    MPI_Win_sync(window);
}

/* Kinds differ in work, and so do their tasks. */
static unsigned long task(int kind, long number) {
    unsigned long value = mix((unsigned long)kind << 32 | number), turns = (2000 + value % 20000) << kind;
    for (unsigned long turn = 0; turn < turns; turn++)
        value = mix(value);
    return value;
}

/* Each rank takes the next number of a kind until there are no more, the longest tasks first. */
static void counters(int steps) {
    unsigned long sum = 0;
    long one = 1, number;
    for (int kind = KINDS - 1; kind >= 0; kind--)
        for (;;) {
            MPI_Fetch_and_op(&one, &number, MPI_LONG, 0, first_counter + kind, MPI_SUM, window);
            MPI_Win_flush(0, window);
            if (number >= (long)steps * TASKS)
                break;
            sum += task(kind, number);
        }
    /* The next run has counters of its own. */
    first_counter = KINDS;
    MPI_Allreduce(&sum, &done_sum, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
}

static int counters_wrong(void) {
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    return done_sum != 16100097797979043567ul;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*prepare)(void), (*run)(int);
        int (*wrong)(void), steps;
    } programs[] = {
        {"sparse", sparse_prepare, sparse, sparse_wrong, 50},    {"plasma", plasma_prepare, plasma, plasma_wrong, 40},
        {"fluid", fluid_prepare, fluid, fluid_wrong, 40},        {"align", align_prepare, align, align_wrong, QUERIES},
        {"kmeans", kmeans_prepare, kmeans, kmeans_wrong, 16},    {"product", product_prepare, product, product_wrong, 10},
        {"overlap", overlap_prepare, overlap, overlap_wrong, 6}, {"counters", counters_prepare, counters, counters_wrong, 2},
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
    fprintf(stderr, "usage: kinds-2 NAME\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
}
