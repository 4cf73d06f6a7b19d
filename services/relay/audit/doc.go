// Package audit keeps the trail of what passes through a relay: who did what at which agent, and what came of it; never what was sent.
//
// Each request is one record when it has ended, and two if it lasts: one when it has begun, too. Records are published in batches, at least once and with the same id each time. A request is
// let in only when there is room for its records, so that none is lost while NATS is away: when the room is used up, requests wait. A relay that is killed loses what it has not
// published, at most a second's records.
package audit
