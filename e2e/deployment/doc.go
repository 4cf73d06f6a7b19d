// Package deployment holds what is in docker-compose.yml and deploy/ to the programs that it runs:
// every service is everywhere that a service has to be, every setting exists, every metric that a
// dashboard shows is one that the code counts, and every container runs with as little as it can.
package deployment
