-- Dissector of the GUE header between Shunt's muxes and hosts (docs/wire/gue.md).
local gue = Proto("shunt_gue", "Shunt GUE")
local f = {
  version = ProtoField.uint8("shunt_gue.version", "Version", base.DEC, nil, 0xc0),
  control = ProtoField.bool("shunt_gue.control", "Control message", 8, nil, 0x20),
  hlen = ProtoField.uint8("shunt_gue.hlen", "Header words", base.DEC, nil, 0x1f),
  protocol = ProtoField.uint8("shunt_gue.protocol", "Inner protocol", base.DEC),
  flags = ProtoField.uint16("shunt_gue.flags", "Flags", base.HEX),
  hop = ProtoField.uint8("shunt_gue.hop", "Hops", base.DEC, nil, 0xf0),
  private = ProtoField.uint8("shunt_gue.private", "Private flags", base.HEX, nil, 0x0f),
  generation = ProtoField.uint8("shunt_gue.generation", "Generation", base.DEC),
  previous = ProtoField.uint16("shunt_gue.previous", "Previous member", base.DEC),
  vni = ProtoField.uint24("shunt_gue.vni", "VNI", base.DEC),
  member = ProtoField.uint16("shunt_gue.member", "Member", base.DEC),
}
gue.fields = f

function gue.dissector(buffer, info, tree)
  if buffer:len() < 16 then return 0 end
  info.cols.protocol = "Shunt GUE"
  local t = tree:add(gue, buffer(0, 16))
  t:add(f.version, buffer(0, 1))
  t:add(f.control, buffer(0, 1))
  t:add(f.hlen, buffer(0, 1))
  t:add(f.protocol, buffer(1, 1))
  t:add(f.flags, buffer(2, 2))
  t:add(f.hop, buffer(4, 1))
  t:add(f.private, buffer(4, 1))
  t:add(f.generation, buffer(5, 1))
  t:add(f.previous, buffer(6, 2))
  t:add(f.vni, buffer(8, 3))
  t:add(f.member, buffer(12, 2))
  local inner = Dissector.get(buffer(1, 1):uint() == 41 and "ipv6" or "ip")
  inner:call(buffer(16):tvb(), info, tree)
  return buffer:len()
end

DissectorTable.get("udp.port"):add(6080, gue)
