package security_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
)

// targets returns subjects of every family, used and unused.
func (s *isolationScenario) targets() []string {
	all := s.subjects()
	victim := strconv.FormatInt(s.victim.AgentID, 10)
	families := []string{topology.FamilySecret, "deploy", "agent", "job", "nowhere", attackName}
	for _, stream := range topology.Streams() {
		families = append(families, stream.Family)
	}
	for _, family := range families {
		prefix := stack.Cell.Prefix(family)
		for _, rest := range []string{
			"", "." + victim, "." + victim + "." + s.workspaces[0].ID,
			"." + victim + ".deployment.a.b", "." + victim + ".resync", "." + victim + ".config",
			".state.observed." + victim + ".x", ".state.desired." + victim + ".x", ".agent." + victim,
			".user.1", "." + strconv.FormatInt(s.workspaces[0].ProjectID, 10) + "." + s.workspaces[0].ID + ".created",
		} {
			all = append(all, prefix+rest)
		}
	}
	// Agent ids that begin or end like the attacker's, or are the same number spelled differently.
	own := strconv.FormatInt(s.attacker.AgentID, 10)
	for _, agent := range []string{
		own + "0", "0" + own, "+" + own, own + "%20", own[:len(own)-1] + "0" + own, "-" + own, "%",
	} {
		all = append(all, stack.Cell.Prefix(topology.FamilyObserved)+"."+agent+".resync",
			stack.Cell.Prefix(topology.FamilyApplied)+"."+agent+".w")
	}
	// The attacker's own subjects in families that it must not write.
	for _, family := range []string{topology.FamilyDesired, topology.FamilyDesiredLog, topology.FamilyControl} {
		prefix := stack.Cell.Prefix(family) + "." + own
		all = append(all, prefix+"."+s.workspaces[0].ID, prefix+".config")
	}
	uppercase := strings.ToUpper(stack.Cell.ObservedResync(s.attacker.AgentID))
	all = append(all, "lockstep.other.observed."+own+".resync", uppercase)
	slices.Sort(all)
	return slices.Compact(all)
}

// services returns the subjects that services subscribe to.
func services(agent int64) []string {
	return []string{
		stack.Cell.All(topology.FamilySecret),
		stack.Cell.Prefix(topology.FamilySecret) + ".*.*",
		stack.Cell.Secret(agent, "*"),
		"$SYS.REQ.USER.AUTH",
		"$JS.API.>",
		"$JS.API.CONSUMER.MSG.NEXT.DESIRED.*",
		"$SYS.REQ.>",
	}
}

func wildcards(agent int64) []string {
	victim := strconv.FormatInt(agent, 10)
	return []string{
		">",
		"*",
		"*.>",
		"lockstep.>",
		"lockstep.*.*.>",
		"lockstep.local.>",
		"lockstep.local.*." + victim + ".>",
		"lockstep.local.observed.>",
		"lockstep.local.desired.>",
		"lockstep.local.desired." + victim + ".*",
		"lockstep.local.dead.>",
		"_INBOX.>",
		"_INBOX_" + victim + ".>",
		"_INBOX_*.>",
		"_INBOX_state.>",
		"_R_.>",
		"_GR_.>",
		"$JS.>",
		"$JS.ACK.>",
		"$JS.ACK.DESIRED.*.>",
		"$JS.FC.>",
		"$JS.EVENT.>",
		"$SYS.>",
		"$KV.>",
		"$O.>",
		"$SRV.>",
	}
}

func serverSubjects() []string {
	return []string{
		"$SYS.REQ.USER.AUTH",
		"$SYS.REQ.USER.INFO",
		"$SYS.REQ.SERVER.PING",
		"$SYS.REQ.SERVER.PING.CONNZ",
		"$SYS.REQ.SERVER.PING.KICK",
		"$SYS.REQ.SERVER.x.KICK",
		"$SYS.REQ.SERVER.x.RELOAD",
		"$SYS.REQ.SERVER.x.LDM",
		"$SYS.REQ.ACCOUNT.AGENTS.CONNZ",
		"$SYS.REQ.ACCOUNT.CONTROL.SUBSZ",
		"$SYS.REQ.CLAIMS.UPDATE",
		"$SYS.REQ.CLAIMS.DELETE",
		"$SYS.ACCOUNT.CONTROL.CONNECT",
		"$SYS._INBOX.x",
		"$KV.bucket.key",
		"$O.bucket.C.x",
		"$O.bucket.M.x",
		"$MQTT.sess.x",
		"$SRV.PING",
		"$SRV.INFO.state",
		"$NRG.V.x",
		"$JSC.CI.x",
		"$JSC.R.x",
		"$JSC.ARA",
		"$GNR.x",
		"_R_.x",
		"_R_.x.y.z",
		"_GR_.x.y.z",
		"$GR.x.y",
		"$LDS.x",
		"$JS.FC.DESIRED.x.y",
		"$JS.M.x",
		"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.DESIRED.x",
		"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.DESIRED.x",
	}
}

// inboxes returns inboxes of others that the attacker can name.
func (s *isolationScenario) inboxes() []string {
	victim := strconv.FormatInt(s.victim.AgentID, 10)
	return []string{
		"_INBOX_" + victim + "." + guessedInbox + ".x",
		"_INBOX_state." + guessedInbox + ".x",
		"_INBOX_operator." + guessedInbox + ".x",
		"_INBOX_callout." + guessedInbox + ".x",
		"_INBOX_sys." + guessedInbox + ".x",
		"_INBOX." + guessedInbox + ".x",
		"_INBOX_" + strconv.FormatInt(s.bystander, 10) + "." + guessedInbox + ".x",
		"_INBOX_" + strconv.FormatInt(s.attacker.AgentID, 10) + "0." + guessedInbox + ".x",
	}
}

// acks returns acknowledgement subjects of an agent's consumers.
func (s *isolationScenario) acks(agent int64) []string {
	var all []string
	for _, consumer := range topology.AgentConsumers(stack.Cell, agent) {
		for sequence := range 5 {
			all = append(all, fmt.Sprintf("$JS.ACK.%s.%s.1.%d.%d.%d.0",
				consumer.Stream, consumer.Config.Durable, sequence+1, sequence+1, time.Now().UnixNano()))
		}
	}
	return all
}

// replies returns reply subjects to which an attacker redirects answers of the server: streams,
// APIs and inboxes.
func (s *isolationScenario) replies() []string {
	all := slices.Concat(s.subjects(), s.inboxesElsewhere(), s.acks(s.victim.AgentID), serverSubjects(),
		services(s.victim.AgentID)[3:4])
	for _, request := range s.apiRequests() {
		for _, subject := range request.subjects {
			if !strings.Contains(subject, "CONSUMER.INFO.") ||
				strings.Contains(subject, strconv.FormatInt(s.victim.AgentID, 10)) {
				all = append(all, subject)
			}
		}
	}
	own := strconv.FormatInt(s.attacker.AgentID, 10)
	all = append(all, stack.Cell.Desired(s.attacker.AgentID, s.workspaces[0].ID),
		"lockstep.local.control."+own+".config", stack.Cell.Secret(s.victim.AgentID, s.workspaces[0].ID))
	return slices.DeleteFunc(all, func(subject string) bool { return strings.ContainsAny(subject, "*>") })
}

// inboxesElsewhere returns the inboxes of other accounts. Within one account, someone who knows an
// inbox could be sent the attacker's own answers.
func (s *isolationScenario) inboxesElsewhere() []string {
	return slices.DeleteFunc(s.inboxes(), func(inbox string) bool {
		return strings.HasPrefix(inbox, "_INBOX_"+strconv.FormatInt(s.victim.AgentID, 10))
	})
}
