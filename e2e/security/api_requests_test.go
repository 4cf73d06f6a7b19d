package security_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
)

// apiRequest is a JetStream request that harms others if the server executes it.
type apiRequest struct {
	name     string
	subjects []string
	body     []byte
}

func (s *isolationScenario) apiRequests() []apiRequest {
	var all []apiRequest
	body := func(v any) []byte {
		raw, err := json.Marshal(v)
		require.NoError(s.T, err)
		return raw
	}
	stolen := "_INBOX_" + strconv.FormatInt(s.attacker.AgentID, 10) + ".stolen.api"
	var own, others []string
	for _, agent := range []int64{s.victim.AgentID, s.bystander, s.attacker.AgentID} {
		for _, c := range []string{topology.DispatcherConsumer(agent), topology.WatcherConsumer(agent)} {
			if agent == s.attacker.AgentID {
				own = append(own, c)
			} else {
				others = append(others, c)
			}
		}
	}
	onStreams := func(name, format string, data any) {
		r := apiRequest{name: name, body: body(data)}
		for _, stream := range topology.Streams() {
			r.subjects = append(r.subjects, fmt.Sprintf(format, stream.Name))
		}
		all = append(all, r)
	}
	onConsumers := func(name, format string, data any) {
		r := apiRequest{name: name, body: body(data)}
		for _, stream := range topology.Streams() {
			for _, consumer := range slices.Concat(own, others, []string{attackName}) {
				r.subjects = append(r.subjects, fmt.Sprintf(format, stream.Name, consumer))
			}
		}
		all = append(all, r)
	}
	type object = map[string]any
	all = append(all, apiRequest{
		"describe the account, or change the cluster",
		[]string{
			server.JSApiAccountInfo,
			server.JSApiStreams,
			server.JSApiStreamList,
			server.JSApiLeaderStepDown,
			server.JSApiRemoveServer,
			server.JSApiEvacuateServer,
			server.JSApiMetaRescue,
			fmt.Sprintf(server.JSApiAccountPurgeT, "CONTROL"),
			fmt.Sprintf(server.JSApiServerStreamMoveT, "CONTROL", "DESIRED"),
			fmt.Sprintf(server.JSApiServerStreamCancelMoveT, "CONTROL", "DESIRED"),
		},
		nil,
	})
	ownStream := object{
		"name":     attackName,
		"subjects": []string{attackName + ".>"},
		"sources":  []object{{"name": topology.StreamDesired}},
	}
	all = append(all, apiRequest{
		"create a stream", []string{fmt.Sprintf(server.JSApiStreamCreateT, attackName)}, body(ownStream),
	})
	onStreams("create an existing stream", server.JSApiStreamCreateT,
		object{"name": topology.StreamDesired, "subjects": []string{attackName}})
	onStreams("change a stream", server.JSApiStreamUpdateT, object{
		"name":      topology.StreamDesired,
		"subjects":  []string{attackName},
		"max_msgs":  1,
		"republish": object{"src": ">", "dest": stolen},
	})
	onStreams("describe a stream", server.JSApiStreamInfoT, object{"subjects_filter": ">", "deleted_details": true})
	onStreams("delete a stream", server.JSApiStreamDeleteT, nil)
	onStreams("purge a stream", server.JSApiStreamPurgeT, object{"filter": stack.Cell.DesiredAgent(s.victim.AgentID)})
	onStreams("purge all of a stream", server.JSApiStreamPurgeT, nil)
	victims := stack.Cell.Desired(s.victim.AgentID, s.workspaces[0].ID)
	onStreams("read a message", server.JSApiMsgGetT, object{"last_by_subj": victims})
	onStreams("read messages directly", server.JSDirectMsgGetT,
		object{"seq": 1, "batch": 100, "multi_last": []string{">"}})
	onStreams("delete a message", server.JSApiMsgDeleteT, object{"seq": 1, "no_erase": false})
	onStreams("take a snapshot", server.JSApiStreamSnapshotT, object{"deliver_subject": stolen})
	onStreams("restore a snapshot", server.JSApiStreamRestoreT,
		object{"config": object{"name": topology.StreamDesired}, "state": object{"messages": 0}})
	onStreams("move the leader of a stream", server.JSApiStreamLeaderStepDownT, nil)
	onStreams("remove a peer of a stream", server.JSApiStreamRemovePeerT, object{"peer": "x"})
	onStreams("evacuate a peer of a stream", server.JSApiStreamEvacuatePeerT, object{"peer": "x"})
	onStreams("cancel the move of a stream", server.JSApiStreamCancelMoveT, nil)
	onStreams("list consumers", server.JSApiConsumersT, nil)
	onStreams("describe consumers", server.JSApiConsumerListT, nil)
	consumer := object{
		"stream_name": topology.StreamDesired,
		"config": object{
			"name":            attackName,
			"durable_name":    attackName,
			"deliver_subject": stolen,
			"ack_policy":      "none",
			"filter_subject":  stack.Cell.All(topology.FamilyDesired),
		},
	}
	onStreams("create a consumer", server.JSApiConsumerCreateT, consumer)
	onConsumers("create a durable consumer", server.JSApiDurableCreateT, consumer)
	onConsumers("create a named consumer", "$JS.API.CONSUMER.CREATE.%s.%s", consumer)
	onConsumers("create a filtered consumer",
		"$JS.API.CONSUMER.CREATE.%s.%s."+stack.Cell.All(topology.FamilyDesired), consumer)
	onConsumers("describe a consumer", server.JSApiConsumerInfoT, nil)
	onConsumers("delete a consumer", server.JSApiConsumerDeleteT, nil)
	onConsumers("pause a consumer", server.JSApiConsumerPauseT, object{"pause_until": time.Now().Add(time.Hour)})
	onConsumers("pull from a consumer", server.JSApiRequestNextT, object{"batch": 100, "no_wait": true})
	onConsumers("reset a consumer", server.JSApiConsumerResetT, object{"seq": 1})
	onConsumers("unpin a consumer", server.JSApiConsumerUnpinT, object{"group": "x"})
	onConsumers("move the leader of a consumer", server.JSApiConsumerLeaderStepDownT, nil)
	onConsumers("remove a peer of a consumer", server.JSApiConsumerRemovePeerT, object{"peer": "x"})
	onConsumers("evacuate a peer of a consumer", server.JSApiConsumerEvacuatePeerT, object{"peer": "x"})
	onConsumers("respond to the flow control of a consumer", "$JS.FC.%s.%s.x", nil)
	for _, stream := range topology.Streams() {
		all = append(all, apiRequest{
			"read the last message of a subject in " + stream.Name,
			[]string{fmt.Sprintf(server.JSDirectGetLastBySubjectT, stream.Name, victims)},
			nil,
		})
	}
	return all
}
