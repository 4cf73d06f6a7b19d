package natsauth

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

// pullThreshold is the time for which the server keeps an idle reply path of a pull request. It must exceed the
// longest silence of a pull: nats.go requests 30 s with a heartbeat every 15 s at most. A higher value only costs
// memory, because each pull request leaves one entry for this time.
const pullThreshold = time.Minute

// The server adds an import of "$JS.API.>" from the system account to every account without JetStream. The system
// account answers each request with an error. These answers race with those of the imports below. Importing
// accountInfoSubject prevents the automatic import. Agents do not need that subject, so their import maps it to one
// without a responder.
const (
	accountInfoSubject = "$JS.API.INFO"
	unusedFamily       = "nowhere"
)

// ControlAPIPrefix is the prefix of JetStream requests to AccountControl in accounts with a JetStream of their own.
// Pass it to jetstream.NewWithAPIPrefix.
const ControlAPIPrefix = "$JS.CONTROL.API"

// exportedService is one subject that AccountControl exports to another account. Agents get service exports only,
// because a stream import would deliver every agent's messages to the account that all agents share.
type exportedService struct {
	subject string
	// streamResponse means that one request has several responses. Without it the server drops the reply path after
	// the first.
	streamResponse bool
}

// agentServices returns the imported services that one agent may use.
func agentServices(cell topology.Cell, agent int64) []exportedService {
	services := publishServices(cell, strconv.FormatInt(agent, 10))
	for _, consumer := range topology.AgentConsumers(cell, agent) {
		services = append(services, consumerServices(consumer.Stream, consumer.Config.Durable)...)
	}

	return services
}

// accountServices returns [agentServices] with wildcards, for the account's imports. A wildcard cannot stand for a
// part of a token, so it stands for any consumer of the streams on which agents have consumers. Permissions limit
// each user to its own.
func accountServices(cell topology.Cell) []exportedService {
	services := publishServices(cell, "*")
	seen := make(map[string]bool)

	for _, consumer := range topology.AgentConsumers(cell, 1) {
		if !seen[consumer.Stream] {
			seen[consumer.Stream] = true
			services = append(services, consumerServices(consumer.Stream, "*")...)
		}
	}

	return services
}

// subscriberServices returns the services of a subscriber's consumer on a stream, without reset.
func subscriberServices(stream, consumer string) []exportedService {
	pair := stream + "." + consumer

	return []exportedService{
		{subject: "$JS.API.CONSUMER.MSG.NEXT." + pair, streamResponse: true},
		{subject: "$JS.API.CONSUMER.INFO." + pair},
		{subject: "$JS.ACK." + pair + ".>"},
	}
}

// allSubscriberServices returns [subscriberServices] of all subscribers, for the account's imports. Permissions limit
// each user to its own.
func allSubscriberServices() []exportedService {
	var services []exportedService
	for _, stream := range topology.PublicStreams() {
		services = append(services, subscriberServices(stream, "*")...)
	}

	return services
}

// accountImports lists what an account imports from AccountControl.
type accountImports struct {
	name     Account
	services []exportedService
	// streams maps exported subjects to the subjects under which the account receives them.
	streams map[string]string
	// jetStream limits the account's own JetStream, as a section of the configuration. Empty means that it has none.
	jetStream string
	// external means that the users are external tools, with low connection limits: see [readerSubscriptions] and
	// [readerPayload].
	external bool
}

// needsNowhere reports whether the account must import accountInfoSubject.
func (a accountImports) needsNowhere() bool { return a.jetStream == "" && len(a.services) > 0 }

// imported returns the subject under which the account imports a service.
func (a accountImports) imported(service exportedService) string {
	if request, ok := strings.CutPrefix(service.subject, jetstream.DefaultAPIPrefix); ok && a.jetStream != "" {
		return ControlAPIPrefix + "." + request
	}

	return service.subject
}

const (
	// readerSubscriptions is the subscription limit of one reader connection.
	readerSubscriptions = 64
	// readerPayload is the largest message of one, in bytes: requests and acknowledgements are
	// small.
	readerPayload = 8 << 10
)

// allAccountImports returns the imports of every account.
func allAccountImports(cell topology.Cell) []accountImports {
	return []accountImports{
		{name: AccountAgents, services: accountServices(cell)},
		{name: AccountSubscribers, services: allSubscriberServices(), external: true},
		deploysImports(cell),
		runnersImports(cell),
		admissionImports(cell),
		gatewayImports(cell),
		routerImports(cell),
		relayImports(cell),
		operatorImports(cell),
		cellsImports(),
		mapImports(),
		// Listeners receive the republished messages of public streams, under the subjects of the stream.
		{name: AccountListeners, streams: cell.LiveSubjects(), external: true},
	}
}

// permissions allow a user all that the account imports.
func (a accountImports) permissions(user string) jwt.Permissions {
	services := slices.Clone(a.services)
	for i := range services {
		services[i].subject = a.imported(services[i])
	}

	permissions := servicePermissions(services, user)
	permissions.Sub.Allow = append(permissions.Sub.Allow, slices.Sorted(maps.Values(a.streams))...)

	return permissions
}

// identity maps each subject to itself.
func identity(subjects ...string) map[string]string {
	same := make(map[string]string, len(subjects))
	for _, subject := range subjects {
		same[subject] = subject
	}

	return same
}

// deploysImports returns the imports of the deploys service. It may use every consumer on the streams that only it
// writes. On OBSERVED it uses its own: it cannot guess the names of others.
func deploysImports(cell topology.Cell) accountImports {
	services := writeServices(
		cell.All(topology.FamilyDeploy), cell.All(topology.FamilySink), cell.ObservedClusters(),
		cell.Prefix(topology.FamilyDead)+"."+PrincipalDeploys+".>", cell.ConsumerRequests(PrincipalDeploys),
	)
	services = append(services, pageServices(topology.StreamDirectory)...)
	services = append(services, readerServices(topology.StreamObserved, "*")...)

	for _, stream := range []string{topology.StreamDeploys, topology.StreamSinks} {
		services = append(services, readServices(stream)...)
		services = append(services, consumerServices(stream, "*")...)
	}

	return accountImports{
		name: AccountDeploys, services: services, streams: identity(cell.All(topology.FamilyDirectoryLive)),
	}
}

// Names of the consumers with which services read streams that others read, too.
const (
	ReaderOfAdmission = "runners-admission"
	ReaderOfJobs      = "admission-jobs"
)

// runnersImports returns the imports of the runners service. It reads its own streams without consumers, and decisions
// of admission with a consumer that it requests.
func runnersImports(cell topology.Cell) accountImports {
	services := writeServices(
		cell.All(topology.FamilyJob), cell.All(topology.FamilyRunner),
		cell.Prefix(topology.FamilyDead)+"."+PrincipalRunners+".>", cell.ConsumerRequests(PrincipalRunners),
	)
	services = append(services, pageServices(topology.StreamJobs)...)
	services = append(services, pageServices(topology.StreamRunners)...)
	services = append(services, pageServices(topology.StreamDirectory)...)
	services = append(services, readerServices(topology.StreamAdmission, ReaderOfAdmission)...)
	services = append(services, cellEntryServices(cell)...)

	return accountImports{
		name: AccountRunners, services: services, streams: identity(cell.All(topology.FamilyDirectoryLive)),
	}
}

// admissionImports returns the imports of the admission service. It reads its own stream without consumers, and the
// events of jobs with a consumer that it requests.
func admissionImports(cell topology.Cell) accountImports {
	services := writeServices(
		cell.All(topology.FamilyAdmission), cell.Prefix(topology.FamilyDead)+"."+PrincipalAdmission+".>",
		cell.ConsumerRequests(PrincipalAdmission),
	)
	for _, stream := range []string{topology.StreamAdmission, topology.StreamRunners, topology.StreamDirectory} {
		services = append(services, pageServices(stream)...)
	}

	services = append(services, readerServices(topology.StreamJobs, ReaderOfJobs)...)

	return accountImports{
		name: AccountAdmission, services: services,
		streams: identity(cell.All(topology.FamilyDirectoryLive), cell.All(topology.FamilyRunnerLive)),
	}
}

// gatewayImports returns the imports of the gateway: it reads two streams, writes the activity of people, and shares a
// bucket with its replicas.
func gatewayImports(cell topology.Cell) accountImports {
	services := writeServices(
		cell.All(topology.FamilyActivity), topology.GatewayAllRevoked, topology.GatewayAllUsed,
	)
	services = append(services, writeServices(
		topology.GatewayHostKeys, "$JS.API.DIRECT.GET."+topology.StreamGateway+"."+topology.GatewayHostKeys,
	)...)

	for _, stream := range []string{topology.StreamAccess, topology.StreamDirectory, topology.StreamGateway} {
		services = append(services, pageServices(stream)...)
	}

	return accountImports{
		name: AccountGateway, services: services,
		streams: identity(
			cell.All(topology.FamilyDirectoryLive), cell.All(topology.FamilyAccessLive), cell.All(topology.FamilyGatewayLive),
		),
	}
}

// routerImports returns the imports of the router: it reads the cell map and writes nothing.
func routerImports(cell topology.Cell) accountImports {
	return accountImports{
		name: AccountRouter, services: pageServices(topology.StreamCells),
		streams: identity(cell.All(topology.FamilyCellsLive)),
	}
}

// relayMemory is the memory of the relays' bucket with all its replicas, in bytes.
const relayMemory = 256 << 20

// relayImports returns the imports of the relay.
func relayImports(cell topology.Cell) accountImports {
	services := writeServices(cell.All(topology.FamilyAgent), cell.All(topology.FamilyAudit))
	services = append(services, pageServices(topology.StreamDirectory)...)
	services = append(services, pageServices(topology.StreamControl)...)

	return accountImports{
		name: AccountRelay, services: services,
		streams:   identity(cell.All(topology.FamilyDirectoryLive), cell.ControlConfigsLive()),
		jetStream: fmt.Sprintf("{max_mem: %d, max_file: 0, max_streams: 1}", relayMemory),
	}
}

// operatorImports returns the imports of the operator: messages of every stream, in pages and single. Of the directory
// it reads the agents only, one by one.
func operatorImports(cell topology.Cell) accountImports {
	imports := accountImports{name: AccountOperator}

	for _, stream := range topology.Streams() {
		if stream.Name != topology.StreamDirectory {
			imports.services = append(imports.services, pageServices(stream.Name)...)
		}
	}

	imports.services = append(imports.services, pageServices(topology.StreamCells)...)
	imports.services = append(imports.services, writeServices(
		"$JS.API.DIRECT.GET."+topology.StreamDirectory+"."+cell.Prefix(topology.FamilyDirectory)+".agent.*",
	)...)

	return imports
}

// cellsImports returns the imports of the runners of other cells. Permissions limit each to the entry of its cell.
func cellsImports() accountImports {
	return accountImports{
		name: AccountCells, services: append(entryServices(topology.CellsCells), entryServices(topology.CellsMoves)...),
	}
}

// mapImports returns the imports of the administrator of the cell map.
func mapImports() accountImports {
	imports := accountImports{name: AccountMap, services: pageServices(topology.StreamCells)}

	for _, subject := range []string{topology.CellsCells, topology.CellsOrganizations, topology.CellsLegacy} {
		imports.services = append(imports.services, entryServices(subject)...)
	}

	return imports
}

// cellEntryServices returns the services to write and read the entries of one cell: its own, and those of organizations
// that it had.
func cellEntryServices(cell topology.Cell) []exportedService {
	return append(entryServices(topology.CellsCell(cell)), entryServices(topology.CellsMovedFrom(cell))...)
}

// entryServices returns the services to write and read one entry of the cell map.
func entryServices(subject string) []exportedService {
	return writeServices(subject, "$JS.API.DIRECT.GET."+topology.StreamCells+"."+subject)
}

// writeServices returns services with one response, such as the acknowledgement of a stream.
func writeServices(subjects ...string) []exportedService {
	services := make([]exportedService, len(subjects))
	for i, subject := range subjects {
		services[i] = exportedService{subject: subject}
	}

	return services
}

// readServices returns the services to read single messages of a stream.
func readServices(stream string) []exportedService {
	return writeServices(
		"$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.MSG.GET."+stream, "$JS.API.DIRECT.GET."+stream,
		"$JS.API.DIRECT.GET."+stream+".>",
	)
}

// readerServices returns the services to read a stream with package cursor and a consumer.
func readerServices(stream, consumer string) []exportedService {
	return append(readServices(stream),
		exportedService{subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer, streamResponse: true},
		exportedService{subject: "$JS.API.CONSUMER.INFO." + stream + "." + consumer},
	)
}

// pageServices returns the services to read a stream with package stored.
func pageServices(stream string) []exportedService {
	return []exportedService{
		{subject: "$JS.API.STREAM.INFO." + stream},
		{subject: "$JS.API.STREAM.MSG.GET." + stream},
		{subject: "$JS.API.DIRECT.GET." + stream, streamResponse: true},
	}
}

func publishServices(cell topology.Cell, agent string) []exportedService {
	var services []exportedService
	for _, pattern := range cell.ObservedPatterns(agent) {
		services = append(services, exportedService{subject: pattern})
	}

	return append(
		services,
		exportedService{subject: cell.Prefix(topology.FamilyApplied) + "." + agent + ".*"},
		exportedService{subject: cell.Prefix(topology.FamilySecret) + "." + agent + ".*"},
	)
}

func consumerServices(stream, consumer string) []exportedService {
	pair := stream + "." + consumer

	return []exportedService{
		{subject: "$JS.API.CONSUMER.MSG.NEXT." + pair, streamResponse: true},
		{subject: "$JS.API.CONSUMER.INFO." + pair},
		{subject: "$JS.API.CONSUMER.RESET." + pair},
		{subject: "$JS.ACK." + pair + ".>"},
	}
}
