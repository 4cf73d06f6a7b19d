// Package cdevent writes deploy facts as CDEvents 0.5.1 in CloudEvents 1.0, and reads them back.
//
// The CloudEvent's data is the CDEvent; its type is the CDEvent's, its id is
// [lockstep.internal/services/deploys/rollout.ID], its time is when the fact occurred. Facts that
// the vocabulary has are told in it (service deployed, upgraded, rolledback, removed, published;
// environment created, deleted), the others as custom events dev.cdeventsx.lockstep-rollout.<fact
// without underscores>.0.1.0. The whole fact is the CDEvent's customData.
package cdevent
