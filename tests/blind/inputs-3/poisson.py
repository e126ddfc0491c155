# A 2-D Poisson equation, solved by way of PETSc: `multigrid` by conjugate gradients with PETSc's algebraic multigrid, `factors` by the sparse LU
# factors of SuperLU_DIST. Each rank assembles its own rows.
import os
import sys

from petsc4py import PETSc

side = 96


def solve(way):
    mesh = PETSc.DMDA().create([side, side], stencil_width=1)
    matrix = mesh.createMatrix()
    (left, right), (low, high) = mesh.getRanges()
    row, column = PETSc.Mat.Stencil(), PETSc.Mat.Stencil()
    for j in range(low, high):
        for i in range(left, right):
            row.index = (i, j)
            row.field = 0
            column.field = 0
            for x, y, value in ((i, j, 4.0), (i - 1, j, -1.0), (i + 1, j, -1.0), (i, j - 1, -1.0), (i, j + 1, -1.0)):
                if 0 <= x < side and 0 <= y < side:
                    column.index = (x, y)
                    matrix.setValueStencil(row, column, value)
    matrix.assemble()
    solution, source = mesh.createGlobalVector(), mesh.createGlobalVector()
    source.set(1.0)
    solver = PETSc.KSP().create()
    solver.setOperators(matrix)
    if way == "multigrid":
        solver.setType("cg")
        solver.getPC().setType("gamg")
        solver.setTolerances(rtol=1e-10)
    else:
        solver.setType("preonly")
        solver.getPC().setType("lu")
        solver.getPC().setFactorSolverType("superlu_dist")
    solver.solve(source, solution)
    image = source.duplicate()
    matrix.mult(solution, image)
    image.axpy(-1.0, source)
    return image.norm() / source.norm()


error = solve(sys.argv[1])
if PETSc.COMM_WORLD.getRank() == 0:
    print("residual", error, flush=True)
if not error < 1e-6:
    os._exit(1)
