// Package runners is the service that gives CI jobs to runners. There is one per cell. Its packages are:
//
//   - job: states, transitions and definitions of jobs
//   - wire: messages of the HTTP contract with GitLab runners
package runners
