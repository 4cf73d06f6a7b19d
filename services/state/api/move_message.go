package api

import (
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
	"lockstep.internal/services/state/workspace"
)

func moveMessage(m move.Move) *statev1.Move {
	directions := map[move.Direction]statev1.MoveDirection{
		move.DirectionOut: statev1.MoveDirection_MOVE_DIRECTION_OUT,
		move.DirectionIn:  statev1.MoveDirection_MOVE_DIRECTION_IN,
	}
	out := &statev1.Move{
		MoveId: m.ID, OrganizationId: m.OrganizationID, Direction: directions[m.Direction], OtherCell: string(m.OtherCell),
		BegunAt: timestamp(m.BegunAt), EndedAt: timestamp(m.EndedAt), Records: int64(m.Imported.Records),
		TokensLeftOut: int64(m.Imported.TokensLeftOut),
	}
	for message, outcome := range moveOutcomes() {
		if outcome == m.Outcome {
			out.Outcome = message
		}
	}
	return out
}

func moveOutcomes() map[statev1.MoveOutcome]move.Outcome {
	return map[statev1.MoveOutcome]move.Outcome{
		statev1.MoveOutcome_MOVE_OUTCOME_UNSPECIFIED: move.OutcomeNone,
		statev1.MoveOutcome_MOVE_OUTCOME_MOVED:       move.OutcomeMoved,
		statev1.MoveOutcome_MOVE_OUTCOME_CANCELED:    move.OutcomeCanceled,
	}
}

// moveRecords returns the records of a content, in the order that an import needs.
func moveRecords(c move.Content) []*statev1.MoveRecord {
	o := &statev1.Organization{Id: c.Organization.ID, Name: c.Organization.Name}
	records := make([]*statev1.MoveRecord, 0, c.Records())
	records = append(records, &statev1.MoveRecord{Entity: &statev1.MoveRecord_Organization{Organization: o}})
	for _, g := range c.Groups {
		records = append(records, &statev1.MoveRecord{Entity: &statev1.MoveRecord_Group{Group: group(g)}})
	}
	for _, p := range c.Projects {
		records = append(records, &statev1.MoveRecord{Entity: &statev1.MoveRecord_Project{Project: project(p)}})
	}
	for _, u := range c.Users {
		records = append(records, &statev1.MoveRecord{Entity: &statev1.MoveRecord_User{User: user(u)}})
	}
	for _, m := range c.Memberships {
		records = append(records, &statev1.MoveRecord{Entity: &statev1.MoveRecord_Membership{Membership: membership(m)}})
	}
	for _, t := range c.Tokens {
		moved := &statev1.MovedToken{Token: accessToken(t.Token), Hash: t.Hash[:]}
		records = append(records, &statev1.MoveRecord{Entity: &statev1.MoveRecord_Token{Token: moved}})
	}
	for _, t := range c.Templates {
		records = append(records, &statev1.MoveRecord{Entity: &statev1.MoveRecord_Template{Template: template(t)}})
	}
	return records
}

// readRecord adds a record to the content of an import.
func readRecord(r *move.Reader, record *statev1.MoveRecord) error {
	switch entity := record.GetEntity().(type) {
	case *statev1.MoveRecord_Organization:
		return r.Organization(directory.Organization{
			ID: entity.Organization.GetId(), Name: entity.Organization.GetName(),
		})
	case *statev1.MoveRecord_Group:
		g := entity.Group
		return r.Group(directory.Group{
			ID: g.GetId(), OrganizationID: g.GetOrganizationId(), ParentID: g.GetParentGroupId(), Name: g.GetName(),
		})
	case *statev1.MoveRecord_Project:
		p := entity.Project
		return r.Project(directory.Project{
			ID: p.GetId(), OrganizationID: p.GetOrganizationId(), GroupID: p.GetGroupId(), Name: p.GetName(),
		})
	case *statev1.MoveRecord_User:
		u := entity.User
		return r.User(directory.User{
			ID: u.GetId(), Username: u.GetUsername(), Admin: u.GetAdmin(), Blocked: u.GetBlocked(),
		})
	case *statev1.MoveRecord_Membership:
		m := entity.Membership
		return r.Membership(directory.Membership{
			UserID: m.GetUserId(), Scope: directory.Scope{Kind: scopeKind(m.GetScope()), ID: m.GetScopeId()},
			Role: role(m.GetRole()),
		})
	case *statev1.MoveRecord_Token:
		t := entity.Token.GetToken()
		token := directory.Token{
			ID: t.GetId(), UserID: t.GetUserId(), Name: t.GetName(), Scope: tokenScopes()[t.GetScope()],
			CreatedBy: t.GetCreatedBy(), CreatedAt: t.GetCreatedAt().AsTime(), Revoked: t.GetRevoked(),
		}
		if t.GetExpiresAt() != nil {
			token.ExpiresAt = t.GetExpiresAt().AsTime()
		}
		return r.Token(token, entity.Token.GetHash())
	case *statev1.MoveRecord_Template:
		t := entity.Template
		return r.Template(workspace.Template{
			ProjectID: t.GetProjectId(), Name: t.GetName(), Spec: specOf(t.GetSpec()), UpdatedAt: t.GetUpdatedAt().AsTime(),
		})
	default:
		return r.Unknown()
	}
}
