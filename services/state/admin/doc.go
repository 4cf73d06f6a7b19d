// Package admin changes the directory: organizations, groups, projects, users, memberships, agents and signing keys. It
// also moves organizations from and to other cells.
// Each change and the messages that publish it are one transaction: package postgres stores the rows, package
// publish encodes the messages, and the outbox publishes them after the commit.
package admin
