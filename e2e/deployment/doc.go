// Package deployment checks docker-compose.yml and deploy/ against the programs: every service is
// deployed everywhere, every setting exists, every metric of a dashboard is exported, and every
// container has the least privileges.
package deployment
