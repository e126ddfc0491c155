/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A master that takes what comes first, from anybody: wildcards, probes, Waitany, Waitsome, Testany, Test, Iprobe. Which messages come in which
 * order differs from run to run, and the printed digests with it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { TASKS = 12, LONGEST = 40 };

static double work(int seed) {
    double x = seed + 1;
    for (int i = 0; i < 3000 * (seed % 7 + 1); i++)
        x = x * 1.0000001 + 1e-9 * (i % 13);
    return x;
}

static MPI_Comm later;

static double master(int size) {
    double digest = 0, in[LONGEST];
    int tasks = TASKS * (size - 1), came;
    MPI_Status status;
    for (int done = 0; done < tasks; done++) {
        /* Tasks come as messages of different lengths. */
        if (done % 3 == 0) {
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        } else {
            int there = 0;
            while (!there)
                MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, &status);
        }
        MPI_Get_count(&status, MPI_DOUBLE, &came);
        MPI_Recv(in, LONGEST, MPI_DOUBLE, status.MPI_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        digest = digest * 0.9 + in[came - 1] * (status.MPI_SOURCE + 10 * status.MPI_TAG) + came;
    }
    /* One message of each, in the order in which they come; then by and by. */
    MPI_Request *requests = malloc((size - 1) * sizeof *requests);
    double *values = malloc((size - 1) * sizeof *values);
    int *indices = malloc((size - 1) * sizeof *indices), index, done, found;
    MPI_Status *statuses = malloc((size - 1) * sizeof *statuses);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < size - 1; i++)
            MPI_Irecv(&values[i], 1, MPI_DOUBLE, i + 1, 100 + round, later, &requests[i]);
        for (int left = size - 1; left > 0;) {
            if (round == 0) {
                MPI_Waitany(size - 1, requests, &index, &status);
                digest = digest * 0.9 + values[index] * (index + 1);
                left--;
            } else if (round == 1) {
                MPI_Waitsome(size - 1, requests, &done, indices, statuses);
                for (int i = 0; i < done; i++)
                    digest = digest * 0.9 + values[indices[i]] * (statuses[i].MPI_SOURCE + 1);
                left -= done;
            } else if (round == 2) {
                MPI_Testany(size - 1, requests, &index, &found, &status);
                if (found) {
                    digest = digest * 0.9 + values[index] * (index + 2);
                    left--;
                }
            } else {
                found = 0;
                while (!found)
                    MPI_Test(&requests[left - 1], &found, MPI_STATUS_IGNORE);
                left--;
                digest = digest * 0.9 + values[left];
            }
        }
    }
    return digest;
}

static double worker(int rank) {
    double digest = 0, out[LONGEST];
    for (int task = 0; task < TASKS; task++) {
        int length = (rank * 7 + task * 5) % (LONGEST - 1) + 1;
        for (int i = 0; i < length; i++)
            out[i] = work(rank * task + i % 3);
        digest += out[length - 1];
        MPI_Send(out, length, MPI_DOUBLE, 0, task, MPI_COMM_WORLD);
    }
    for (int round = 0; round < 4; round++) {
        double value = work(rank + round);
        MPI_Send(&value, 1, MPI_DOUBLE, 0, 100 + round, later);
    }
    return digest;
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    /* The master's first receives take messages of any tag: those of later rounds are apart. */
    MPI_Comm_dup(MPI_COMM_WORLD, &later);
    double digest = rank == 0 ? master(size) : worker(rank);
    printf("rank %d of %d: digest %.17g\n", rank, size, digest);
    MPI_Finalize();
    return 0;
}
