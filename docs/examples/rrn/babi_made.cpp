// Stories of the kinds of bAbI, by rules and words of our own.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "docs/examples/rrn/babi.hpp"
#include "docs/examples/rrn/draws.hpp"

namespace packrnn::rrn {
namespace {

using Words = std::span<const std::string>;

const std::array<std::string, 4> kActors{"anna", "ben", "clara", "david"};
const std::array<std::string, 6> kRooms{"attic",   "cellar",  "garden",
                                        "kitchen", "library", "workshop"};
const std::array<Sentence, 5> kMoves{{{"went", "to", "the"},
                                      {"moved", "to", "the"},
                                      {"walked", "to", "the"},
                                      {"hurried", "to", "the"},
                                      {"went", "back", "to", "the"}}};

/// An actor's words, one of several ways to say what was done, and what it was done to.
Sentence act(const std::string& actor, std::span<const Sentence> ways, const std::string& object,
             Draws& draws) {
  Sentence fact{actor};
  const Sentence& way = draws.of(ways);
  fact.insert(fact.end(), way.begin(), way.end());
  fact.push_back(object);
  return fact;
}

/// Who is where; empty while unknown.
struct House {
  std::array<std::string, kActors.size()> room;
  std::vector<Sentence> facts;

  void move(std::size_t actor, Draws& draws) {
    std::string to = room[actor];
    while (to == room[actor]) to = draws.of(Words(kRooms));
    room[actor] = to;
    facts.push_back(act(kActors[actor], kMoves, to, draws));
  }
};

std::vector<Question> where_is_somebody(Draws& draws) {
  constexpr int kRounds = 5, kMovesEach = 2;
  House house;
  std::vector<Question> questions;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kMovesEach; ++i) house.move(draws.below(kActors.size()), draws);
    std::size_t asked = draws.below(kActors.size());
    while (house.room[asked].empty()) asked = draws.below(kActors.size());
    questions.push_back({house.facts, {"where", "is", kActors[asked]}, house.room[asked]});
  }
  return questions;
}

std::vector<Question> where_is_a_thing(Draws& draws) {
  static const std::array<std::string, 3> kThings{"apple", "lamp", "book"};
  static const std::array<Sentence, 3> kTakes{
      {{"took", "the"}, {"grabbed", "the"}, {"picked", "up", "the"}}};
  static const std::array<Sentence, 3> kLeaves{
      {{"left", "the"}, {"dropped", "the"}, {"put", "down", "the"}}};
  constexpr std::size_t kNobody = kActors.size(), kEventsBetween = 4;
  struct Thing {
    std::size_t holder = kNobody;
    std::string room;  // where it was left; empty while nobody has had it
  };
  House house;
  std::array<Thing, kThings.size()> things;
  std::vector<Question> questions;
  while (house.facts.size() < kMostFacts) {
    const std::size_t actor = draws.below(kActors.size()), which = draws.below(kThings.size());
    const std::string& room = house.room[actor];
    Thing& thing = things[which];
    const bool may_take =
        thing.holder == kNobody && !room.empty() && (thing.room.empty() || thing.room == room);
    if (may_take) {
      house.facts.push_back(act(kActors[actor], kTakes, kThings[which], draws));
      thing = {actor, {}};
    } else if (thing.holder == actor && draws.below(3) == 0) {
      house.facts.push_back(act(kActors[actor], kLeaves, kThings[which], draws));
      thing = {kNobody, room};
    } else {
      house.move(actor, draws);
    }
    if (house.facts.size() % kEventsBetween != 0) continue;
    const std::size_t asked = draws.below(kThings.size());
    const std::string where =
        things[asked].holder == kNobody ? things[asked].room : house.room[things[asked].holder];
    if (!where.empty())
      questions.push_back({house.facts, {"where", "is", "the", kThings[asked]}, where});
  }
  return questions;
}

std::vector<Question> who_is_feared(Draws& draws) {
  static const std::array<std::string, 4> kKind{"cat", "dog", "goose", "mouse"},
      kKinds{"cats", "dogs", "geese", "mice"};
  static const std::array<std::string, 4> kNames{"emma", "flora", "greta", "hanna"};
  std::array<std::size_t, kKind.size()> fears{};
  std::array<std::size_t, kNames.size()> kind{};
  std::vector<Sentence> facts;
  for (std::size_t k = 0; k < kKind.size(); ++k) {
    fears[k] = (k + draws.between(1, kKind.size() - 1)) % kKind.size();
    facts.push_back({kKinds[k], "are", "afraid", "of", kKinds[fears[k]]});
  }
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    kind[i] = draws.below(kKind.size());
    facts.push_back({kNames[i], "is", "a", kKind[kind[i]]});
  }
  draws.shuffle(std::span(facts));
  std::vector<Question> questions;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    questions.push_back({facts, {"what", "is", kNames[i], "afraid", "of"}, kKind[fears[kind[i]]]});
  return questions;
}

std::vector<Question> which_way(Draws& draws) {
  struct Direction {
    std::string name;
    int x, y;
  };
  static const std::array<Direction, 4> kDirections{
      {{"north", 0, 1}, {"east", 1, 0}, {"south", 0, -1}, {"west", -1, 0}}};
  const auto opposite = [](std::size_t direction) { return (direction + 2) % kDirections.size(); };
  // Each room lies beside an earlier one, so that there is one way from any to any.
  std::array<std::string, kRooms.size()> rooms = kRooms;
  draws.shuffle(std::span<std::string>(rooms));
  std::array<std::pair<int, int>, kRooms.size()> places{};
  struct Way {
    std::size_t from, to, direction;
  };
  std::vector<Way> ways;  // both ways between neighbours
  std::vector<Sentence> facts;
  for (std::size_t room = 1; room < rooms.size(); ++room) {
    std::size_t beside = 0, direction = 0;
    do {
      beside = draws.below(room);
      direction = draws.below(kDirections.size());
      places[room] = {places[beside].first + kDirections[direction].x,
                      places[beside].second + kDirections[direction].y};
    } while (std::find(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(room),
                       places[room]) != places.begin() + static_cast<std::ptrdiff_t>(room));
    ways.push_back({beside, room, direction});
    ways.push_back({room, beside, opposite(direction)});
    const Way& told = ways[ways.size() - 1 - draws.below(2)];
    facts.push_back({"the", rooms[told.to], "is", kDirections[told.direction].name, "of", "the",
                     rooms[told.from]});
  }
  draws.shuffle(std::span(facts));
  Question question{std::move(facts), {}, {}};
  while (question.text.empty()) {
    const Way &first = draws.of(std::span<const Way>(ways)),
              &second = draws.of(std::span<const Way>(ways));
    if (first.to != second.from || first.from == second.to) continue;
    question.text = {"how", "do",  "you",           "go", "from", "the", rooms[first.from],
                     "to",  "the", rooms[second.to]};
    question.answer = fmt::format("{},{}", kDirections[first.direction].name[0],
                                  kDirections[second.direction].name[0]);
  }
  return {std::move(question)};
}

std::vector<Question> make_story(int task, Draws& draws) {
  switch (task) {
    case 1:
      return where_is_somebody(draws);
    case 2:
      return where_is_a_thing(draws);
    case 15:
      return who_is_feared(draws);
    case 19:
      return which_way(draws);
    default:
      throw InvalidArgument(fmt::format("task is {}, expected 1, 2, 15 or 19", task));
  }
}

}  // namespace

Babi make_babi(int task, std::uint64_t seed, const BabiSizes& sizes) {
  std::set<std::string> seen;  // questions of the parts before
  std::uint64_t stream = 0;
  const auto make = [&](std::size_t count) {
    Draws draws(seed, stream++);
    std::vector<Question> part;
    std::set<std::string> own;
    while (part.size() < count)
      for (Question& question : make_story(task, draws)) {
        std::string key = fmt::format("{} {}", question.facts, question.text);
        if (part.size() == count || seen.contains(key)) continue;
        own.insert(std::move(key));
        part.push_back(std::move(question));
      }
    seen.merge(own);
    return part;
  };
  Babi babi;
  babi.train = make(sizes.train);
  babi.valid = make(sizes.valid);
  babi.test = make(sizes.test);
  return babi;
}

}  // namespace packrnn::rrn
