/* A library that calls back. */
volatile int through_count;

void through(void (*callback)(int), int n)
{
	double room[20];
	for (int i = 0; i < 20; i++)
		room[i] = n * i;
	callback(n);
	through_count += room[n];
}
