package state_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// export returns the records of an organization for the move m1.
func (a as) export(organization int64) ([]*statev1.MoveRecord, error) {
	a.t.Helper()
	stream, err := a.moves.ExportOrganization(a.t.Context(), connect.NewRequest(&statev1.ExportOrganizationRequest{
		OrganizationId: organization, MoveId: "m1",
	}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var records []*statev1.MoveRecord
	for stream.Receive() {
		records = append(records, stream.Msg().GetRecords()...)
	}
	return records, stream.Err()
}

// importAll sends records in several messages.
func (a as) importAll(
	organization int64, id, from string, records []*statev1.MoveRecord,
) (*statev1.Move, error) {
	a.t.Helper()
	stream := a.moves.ImportOrganization(a.t.Context())
	first := &statev1.ImportOrganizationRequest{OrganizationId: organization, MoveId: id, FromCell: from}
	if err := stream.Send(first); err == nil { // the response has the error
		for some := range slices.Chunk(records, 3) {
			if stream.Send(&statev1.ImportOrganizationRequest{Records: some}) != nil {
				break
			}
		}
	}
	response, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return response.Msg.GetMove(), nil
}

func (a as) organization(id int64) *statev1.Organization {
	a.t.Helper()
	for _, o := range call(a.t, a.directory.ListOrganizations, &statev1.ListOrganizationsRequest{}).GetOrganizations() {
		if o.GetId() == id {
			return o
		}
	}
	return nil
}

func (a as) endMove(request *statev1.EndMoveRequest) *statev1.EndMoveResponse {
	a.t.Helper()
	return call(a.t, a.moves.EndMove, request)
}

// acme is an organization with ada as its owner.
func (a as) acme() (organization, group, ada int64, adas string) {
	a.t.Helper()
	o := call(a.t, a.directory.CreateOrganization, &statev1.CreateOrganizationRequest{Name: "acme"}).GetOrganization()
	g := call(a.t, a.directory.CreateGroup, &statev1.CreateGroupRequest{OrganizationId: o.GetId(), Name: "web"}).GetGroup()
	u := call(a.t, a.directory.CreateUser, &statev1.CreateUserRequest{Username: "ada"}).GetUser()
	call(a.t, a.directory.PutMembership, &statev1.PutMembershipRequest{Membership: &statev1.Membership{
		UserId: u.GetId(), Scope: statev1.ScopeKind_SCOPE_KIND_ORGANIZATION, ScopeId: o.GetId(),
		Role: statev1.Role_ROLE_OWNER,
	}})
	adas = call(a.t, a.tokens.CreateToken, &statev1.CreateTokenRequest{Name: "laptop", UserId: u.GetId()}).GetValue()
	return o.GetId(), g.GetId(), u.GetId(), adas
}

func TestOrganizationMovesToAnotherCell(t *testing.T) {
	t.Parallel()
	source, target := newFixture(t), newCell(t, "eu-2", 1)
	source.start(t)
	target.start(t)
	from, to := source.as(t, source.admin), target.as(t, target.admin)
	organization, group, ada, adas := from.acme()
	createProject := func(a as, name string) error {
		_, err := a.directory.CreateProject(t.Context(), connect.NewRequest(&statev1.CreateProjectRequest{
			GroupId: group, Name: name,
		}))
		return err
	}
	require.NoError(t, createProject(from, "shop"))
	require.Equal(t, statev1.Residence_RESIDENCE_HERE, from.organization(organization).GetResidence())

	check := &statev1.CheckMoveRequest{OrganizationId: organization}
	blocking := call(t, from.moves.CheckMove, check)
	require.Zero(t, blocking.GetAgents()+blocking.GetWorkspaces())
	refused(t, errcode.PermissionDenied, source.as(t, adas).moves.CheckMove, check)
	refused(t, errcode.NotFound, from.moves.CheckMove, &statev1.CheckMoveRequest{OrganizationId: 1 << 50})
	refused(t, errcode.InvalidArgument, from.moves.CheckMove, &statev1.CheckMoveRequest{})
	begin := &statev1.BeginMoveRequest{OrganizationId: organization, MoveId: "m1", ToCell: "eu-2"}
	begun := call(t, from.moves.BeginMove, begin).GetMove()
	again := call(t, from.moves.BeginMove, begin).GetMove()
	require.Equal(t, begun.GetBegunAt(), again.GetBegunAt(), "it is the same move")
	require.Equal(t, statev1.MoveDirection_MOVE_DIRECTION_OUT, begun.GetDirection())
	err := createProject(source.as(t, adas), "late")
	require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "organization acme (")
	require.ErrorContains(t, err, "is being moved to cell eu-2: try again in some minutes")

	records, err := from.export(organization)
	require.NoError(t, err)
	require.Len(t, records, 6)
	_, err = target.as(t, adas).export(organization)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err), "the token is not known before the import: %v", err)
	imported, err := to.importAll(organization, "m1", "local", records)
	require.NoError(t, err)
	require.EqualValues(t, 6, imported.GetRecords())
	require.Zero(t, imported.GetTokensLeftOut())
	arrived := to.organization(organization)
	require.Equal(t, statev1.Residence_RESIDENCE_ARRIVING, arrived.GetResidence())
	require.Equal(t, "local", arrived.GetOtherCell())
	err = createProject(target.as(t, adas), "late")
	require.Equal(t, errcode.OrganizationMoving, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "is being moved here from cell local")

	moved := statev1.MoveOutcome_MOVE_OUTCOME_MOVED
	changes := from.endMove(&statev1.EndMoveRequest{OrganizationId: organization, MoveId: "m1", Outcome: moved})
	require.Empty(t, changes.GetRevokedTokens())
	ended := to.endMove(&statev1.EndMoveRequest{OrganizationId: organization, MoveId: "m1", Outcome: moved})
	require.Equal(t, moved, ended.GetMove().GetOutcome())
	err = createProject(source.as(t, adas), "late")
	require.Equal(t, errcode.FailedPrecondition, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "is in cell eu-2: use that cell")
	require.NoError(t, createProject(target.as(t, adas), "late"))
	require.Equal(t, "eu-2", from.organization(organization).GetOtherCell())
	found := call(t, to.moves.GetMove, &statev1.GetMoveRequest{OrganizationId: organization}).GetMove()
	require.Equal(t, "m1", found.GetMoveId())
	require.NotNil(t, found.GetEndedAt())

	// Other services of the target know the organization from the stream.
	d := target.readDirectory(t)
	scope := directory.Scope{Kind: directory.Group, ID: group}
	until(t, d, func() bool { return d.Role(ada, scope) == directory.RoleOwner })
}

func TestMovesAreForAdministrators(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	organization, _, _, adas := admin.acme()
	weak := call(t, admin.tokens.CreateToken, &statev1.CreateTokenRequest{
		Name: "weak", Scope: statev1.TokenScope_TOKEN_SCOPE_WRITE,
	}).GetValue()
	call(t, admin.moves.BeginMove, &statev1.BeginMoveRequest{OrganizationId: organization, MoveId: "m1", ToCell: "eu-2"})
	for name, a := range map[string]as{"an owner": b.as(t, adas), "a token that cannot administer": b.as(t, weak)} {
		refused(t, errcode.PermissionDenied, a.moves.BeginMove,
			&statev1.BeginMoveRequest{OrganizationId: organization, MoveId: "m2", ToCell: "eu-2"})
		refused(t, errcode.PermissionDenied, a.moves.EndMove, &statev1.EndMoveRequest{
			OrganizationId: organization, MoveId: "m1", Outcome: statev1.MoveOutcome_MOVE_OUTCOME_CANCELED,
		})
		_, err := a.export(organization)
		require.Equal(t, errcode.PermissionDenied, fault.CodeOf(err), "%s: %v", name, err)
		_, err = a.importAll(organization, "m3", "eu-2", nil)
		require.Equal(t, errcode.PermissionDenied, fault.CodeOf(err), "%s: %v", name, err)
	}
	get := &statev1.GetMoveRequest{OrganizationId: organization}
	refused(t, errcode.PermissionDenied, b.as(t, adas).moves.GetMove, get)
	require.Equal(t, "m1", call(t, b.as(t, weak).moves.GetMove, get).GetMove().GetMoveId())
}

func TestMalformedMovesAreRefused(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	organization, group, _, _ := admin.acme()
	refused(t, errcode.InvalidArgument, admin.moves.BeginMove,
		&statev1.BeginMoveRequest{OrganizationId: organization, MoveId: "m1", ToCell: "local"})
	refused(t, errcode.NotFound, admin.moves.BeginMove,
		&statev1.BeginMoveRequest{OrganizationId: group, MoveId: "m1", ToCell: "eu-2"})
	refused(t, errcode.InvalidArgument, admin.moves.EndMove,
		&statev1.EndMoveRequest{OrganizationId: organization, MoveId: "m1"})
	refused(t, errcode.InvalidArgument, admin.moves.GetMove, &statev1.GetMoveRequest{})
	refused(t, errcode.NotFound, admin.moves.GetMove, &statev1.GetMoveRequest{OrganizationId: organization})
	_, err := admin.export(organization)
	require.Equal(t, errcode.NotFound, fault.CodeOf(err), "%v", err)

	_, err = admin.importAll(9, "m1", "eu-2", []*statev1.MoveRecord{{}})
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "use the same version in both cells")
	stream := admin.moves.ImportOrganization(t.Context())
	require.NoError(t, stream.Send(&statev1.ImportOrganizationRequest{
		OrganizationId: 9, MoveId: "m1", FromCell: "eu-2", Records: make([]*statev1.MoveRecord, 1001),
	}))
	_, err = stream.CloseAndReceive()
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "the limit is 1000")
	_, err = admin.moves.ImportOrganization(t.Context()).CloseAndReceive()
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err), "%v", err)
}
