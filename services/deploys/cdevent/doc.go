// Package cdevent encodes deploy facts as CDEvents 0.5.1 in CloudEvents 1.0, and decodes them.
//
// The CDEvent is the data of the CloudEvent, which has the type of the CDEvent, the id
// [lockstep.internal/services/deploys/rollout.ID] and the time of the fact. Some facts have a
// standard type (service deployed, upgraded, rolledback, removed, published; environment created,
// deleted). The others are custom events of type dev.cdeventsx.lockstep-rollout.<fact without
// underscores>.0.1.0. The customData is the complete fact.
package cdevent
