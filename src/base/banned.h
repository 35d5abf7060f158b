/* banned.h - functions that nobody here calls; each has a safer one beside it. */
#ifndef FST_BANNED_H
#define FST_BANNED_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf strtok gets atoi atol atof
#pragma GCC poison localtime gmtime ctime asctime rand srand

#endif
