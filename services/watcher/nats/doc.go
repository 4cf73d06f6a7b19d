// Package nats is the watcher's side to NATS: it publishes to JetStream and reads what the agent is told.
//
// [Publisher.Publish] sends without waiting and calls back once with the receipt: nil means stored. An error means that it is not known
// to be stored; it may be all the same. Nothing is kept and sent later: a connection that is gone fails what is in flight. Messages
// carry no message id, so that sending again stores again; who reads knows the event by its id.
//
// [Control.Run] reads the agent's consumer on CONTROL from its beginning, which is the last configuration and the last
// request, then what follows. A message is acknowledged when what it asks for has happened; until then it is kept from redelivery, and
// if this process ends first, the next one is told again. Messages that cannot be understood are terminated and logged: agents may not write to DEAD.
package nats
