* A power of a sum, expanded, with a rule for each term, and collected.
Symbols a, b, c, d, e, x;
Off statistics;
Local F = (a + 2*b + 3*c + 4*d + 5*e)^3;
.sort
Local G = F * (a + b + c + d + e)^8;
id a = b + x;
.sort
id b = c - x;
id x^3 = 1;
.sort
id c^2 = d*e;
Print;
Bracket x;
.end
