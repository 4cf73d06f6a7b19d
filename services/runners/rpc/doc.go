// Package rpc calls the other services that take part in a move of an organization: the state service of this cell, and
// the runners service of the other cell. All errors are faults.
package rpc
