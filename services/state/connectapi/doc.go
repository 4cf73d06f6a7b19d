// Package connectapi is the state service's API for people and programs: Connect, gRPC and JSON over HTTP from one protobuf definition.
//
// Every call carries a personal access token (Authorization: Bearer …) and is authorized by package authz with the user's role in the
// scope of the thing. A thing that the caller may not read does not exist for it: not_found, never permission_denied. Input is checked
// whole before anything is written, and refused input changes nothing. Errors are faults, mapped to Connect by the fault interceptor.
//
// Answers come from the database, so that a caller reads its own writes at any replica. Lists are ordered by id and paged by the last id.
package connectapi
